"""Self-contained HTML reports: tables, inline SVG figures, verdicts. Nothing is loaded from elsewhere."""

from mssvm.report.charts import Series, heat_map, line_chart
from mssvm.report.model import Claim, Figure, Section, Table, Text
from mssvm.report.page import page
from mssvm.report.pictures import hidden_chain_graph, hidden_grid_graph, label_picture, legend, scalar_picture

__all__ = [
    "Claim",
    "Figure",
    "Section",
    "Series",
    "Table",
    "Text",
    "heat_map",
    "hidden_chain_graph",
    "hidden_grid_graph",
    "label_picture",
    "legend",
    "line_chart",
    "page",
    "scalar_picture",
]

"""scikit-learn estimators and the structures they learn on."""

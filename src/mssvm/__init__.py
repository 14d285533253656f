"""mssvm: structured prediction when part of the structure is never seen."""

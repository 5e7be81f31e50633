"""One file a figure of the report page; each builds a plotly figure and the table of the same numbers."""

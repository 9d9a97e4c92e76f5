"""One HTML file that shows runs or reproductions: what ran, tables, figures, costs, failures."""

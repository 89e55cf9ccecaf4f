"""How it is told: tables, pages, files."""

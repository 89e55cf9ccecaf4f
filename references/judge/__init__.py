"""What is found: a cell run, compared and judged."""

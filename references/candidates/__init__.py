"""Who is asked and what it claims: a candidate loaded, called, isolated, probed."""

"""How far a result may lie from the truth."""

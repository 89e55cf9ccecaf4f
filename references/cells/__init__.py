"""What is asked: cells, their ids and inputs, and the levels made of them."""

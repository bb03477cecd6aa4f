"""What is asked and answered: sources of questions, keys, and the secret streams that both are drawn from."""

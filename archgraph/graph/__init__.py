"""What an architecture is: frozen values, and the text that prints them and reads back."""

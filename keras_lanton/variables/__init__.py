"""What a variable is: its role and its matrix view."""

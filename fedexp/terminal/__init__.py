"""What every command needs to speak to its user: the console, numbers in words, arguments and errors."""

"""``python -m fedexp``."""

from fedexp.cli import main

if __name__ == "__main__":
    main()

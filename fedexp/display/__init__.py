"""What the user sees of a run: its progress and, at the end, a short summary."""

from fedexp.display.base import Display, SilentDisplay, choose, shown
from fedexp.display.summary import summary

__all__ = ["Display", "SilentDisplay", "choose", "shown", "summary"]

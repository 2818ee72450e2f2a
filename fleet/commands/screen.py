"""The console of every command: what others named is shown, and does nothing.

Problem: Kafka allows any character in a group's id and in a client's, and whoever may join a group
chooses them; an escape sequence in one, printed as it is, moves the cursor, writes into the
clipboard or hides a line on the terminal of who looks. Rich passes these on, and takes `:key:` in
a name for an emoji. Choice: one console that shows what would act on a terminal as a replacement
character, wherever it comes from; its own colours are no text. Cost: colours that a job writes
into its log or an error are not shown as such.
"""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fleet.text import visible


class Screen(Console):
    """A console that knows no emoji, and shows control characters instead of sending them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Any:
        """Before its width is measured."""
        return super().render_str(visible(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Also of what was no string any more."""
        for each in super().render(renderable, options):
            shown = each.text if each.control else visible(each.text)
            yield each if shown == each.text else Segment(shown, each.style)

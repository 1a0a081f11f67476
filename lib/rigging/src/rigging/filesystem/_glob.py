"""Brace expansion and the question whether a text is a pattern."""


def has_magic(pattern: str) -> bool:
    """Tell whether ``pattern`` can match more than its own text.

    Example:
        >>> has_magic("a/*.txt"), has_magic("a/b.txt")
        (True, False)
    """
    return any(char in pattern for char in "*?[")


def brace_expand(pattern: str) -> list[str]:
    """Expand ``{a,b}`` lists and ``{1..3}`` ranges, nested at will; text without a comma or range is kept.

    Example:
        >>> brace_expand("s-{0..2}.{jsonl,txt}")[:3]
        ['s-0.jsonl', 's-0.txt', 's-1.jsonl']
    """
    start = pattern.find("{")
    while start != -1:
        end = _closing(pattern, start)
        if end == -1:
            break
        choices = _choices(pattern[start + 1 : end])
        if choices is not None:
            tails = brace_expand(pattern[end + 1 :])
            return [
                pattern[:start] + head + tail for choice in choices for head in brace_expand(choice) for tail in tails
            ]
        start = pattern.find("{", start + 1)
    return [pattern]


def _closing(pattern: str, start: int) -> int:
    depth = 0
    for index in range(start, len(pattern)):
        depth += (pattern[index] == "{") - (pattern[index] == "}")
        if depth == 0:
            return index
    return -1


def _choices(body: str) -> list[str] | None:
    parts, depth, last = [], 0, 0
    for index, char in enumerate(body):
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts.append(body[last:index])
            last = index + 1
    if parts:
        return [*parts, body[last:]]
    low, dots, high = body.partition("..")
    if not (dots and low.isdigit() and high.isdigit()):
        return None
    width = len(low) if low.startswith("0") else 0
    step = 1 if int(low) <= int(high) else -1
    return [str(number).zfill(width) for number in range(int(low), int(high) + step, step)]

"""Bars in SVG, light and dark."""

from html import escape

#: Weft's colour and those of the others, text, lines, background.
THEMES = {
    "light": (["#0b6e99", "#6db6d6", "#c2661b", "#e0a96d", "#8a8a8a", "#8a63a8"], "#24292f", "#d0d7de", "#ffffff"),
    "dark": (["#4cc2ff", "#1f7ba8", "#e8965a", "#a8683a", "#9a9a9a", "#b48ad6"], "#e6edf3", "#3d444d", "#0d1117"),
}
WIDTH, LABEL, VALUE, BAR, GAP, FONT = 860, 250, 60, 13, 14, "ui-sans-serif,system-ui,sans-serif"


def bars(panels, theme, colours):
    """`panels`: for each a title, a unit, and groups of (name, [(series, value, mark)]); a longer bar is more of it.
    `colours`: each series' place in the theme's list; a mark is drawn as a line, a limit."""
    palette, ink, line, ground = THEMES[theme]
    parts, y = [], 16
    series = list(dict.fromkeys(name for _, _, groups in panels for _, rows in groups for name, _, mark in rows if not mark))

    def text(x, at, what, size=12, weight="normal", anchor="start"):
        parts.append(f'<text x="{x:.0f}" y="{at:.0f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
                     f'fill="{ink}">{escape(what)}</text>')

    x = 10
    for name in series:
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" rx="2" fill="{palette[colours[name]]}"/>')
        text(x + 17, y + 11, name)
        x += 40 + 7 * len(name)
    if any(mark for _, _, groups in panels for _, rows in groups for _, _, mark in rows):
        parts.append(f'<path d="M{x + 6} {y}v12" stroke="{ink}" stroke-width="2"/>')
        text(x + 17, y + 11, "limit: memcpy, plain sockets")
    y += 28
    for title, unit, groups in panels:
        text(10, y + 12, title, 14, "bold")
        text(WIDTH - 10, y + 12, unit, 12, anchor="end")
        y += 24
        most = max((value for _, rows in groups for _, value, _ in rows if value), default=1) or 1
        scale = (WIDTH - LABEL - VALUE - 10) / most
        for name, rows in groups:
            drawn = [row for row in rows if not row[2]]
            text(LABEL - 10, y + BAR * len(drawn) / 2 + 4, name, anchor="end")
            for at, (engine, value, _) in enumerate(drawn):
                top = y + at * BAR
                if value is None:
                    text(LABEL + 3, top + BAR - 3, f"{engine}: cannot", 10)
                    continue
                parts.append(f'<rect x="{LABEL}" y="{top}" width="{max(1.0, value * scale):.1f}" height="{BAR - 2}" rx="2" '
                             f'fill="{palette[colours[engine]]}"><title>{escape(engine)}: {value:.3g} {escape(unit)}</title></rect>')
                text(LABEL + value * scale + 5, top + BAR - 3, f"{value:.2f}" if value < 10 else f"{value:.0f}", 10)
            for engine, value, mark in rows:
                if mark and value:
                    parts.append(f'<path d="M{LABEL + value * scale:.1f} {y - 3}v{BAR * len(drawn) + 4}" stroke="{ink}" '
                                 f'stroke-width="2"><title>{escape(engine)}: {value:.3g} {escape(unit)}</title></path>')
            y += BAR * len(drawn) + GAP
        parts.append(f'<path d="M10 {y - GAP / 2:.0f}H{WIDTH - 10}" stroke="{line}"/>')
        y += 6
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" '
            f'font-family="{FONT}"><rect width="100%" height="100%" fill="{ground}"/>{"".join(parts)}</svg>\n')

"""The style sheet of a report's page: light and dark, from a phone's width to a wide screen."""

from __future__ import annotations

#: Hues are apart for people who see red and green alike (after Okabe and Ito, 2008), and each of
#: the two sets is darker on white and lighter on black.
_LIGHT = """
--page: #fbfbfa; --card: #ffffff; --ink: #1b1f24; --muted: #59636e; --grid: #d8dde3;
--run0: #1668b8; --run1: #c2560f; --run2: #10806a; --run3: #8a4fa8;
--run4: #7a6a00; --run5: #4d5a66;
--part0: #d1495b; --part1: #8fa3b5; --part2: #e0a526; --part3: #c6d0d9; --part4: #6a5acd;
--part5: #2a9d8f; --part6: #b07d62; --part7: #4d5a66;
"""
_DARK = """
--page: #14171a; --card: #1d2125; --ink: #e8eaed; --muted: #a3adb8; --grid: #3a424b;
--run0: #6cb2f7; --run1: #f5a05e; --run2: #55c9ae; --run3: #cfa0e8;
--run4: #d8c65a; --run5: #aab6c2;
--part0: #ef7d8b; --part1: #7d93a8; --part2: #efc45c; --part3: #4e5b68; --part4: #9d92f0;
--part5: #5cc8ba; --part6: #d3a486; --part7: #aab6c2;
"""

SHEET = (
    f":root {{ color-scheme: light dark; {_LIGHT} }}"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}"
    """
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.05rem; font-weight: 600; color: var(--muted); margin: 0; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0.75rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 0.25rem; }
.verdict { font-size: clamp(1.15rem, 2.6vw, 1.6rem); line-height: 1.35; margin: 0.5rem 0 1.5rem;
  max-width: 50ch; text-wrap: pretty; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: 0.75rem;
  margin: 0; }
.tiles > div { display: flex; flex-direction: column; background: var(--card);
  border: 1px solid var(--grid); border-radius: 0.6rem; padding: 0.9rem 1rem; }
.tiles dt { order: 2; font-weight: 600; }
.tiles dd { margin: 0; }
.tiles .value { order: 1; font-size: 2.1rem; font-weight: 650; line-height: 1.15;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.tiles .note { order: 3; color: var(--muted); font-size: 0.875rem; }
.plots { columns: 2 24rem; column-gap: 0.75rem; }
figure { margin: 0 0 0.75rem; background: var(--card); border: 1px solid var(--grid);
  border-radius: 0.6rem; padding: 0.75rem 0.9rem; min-width: 0; break-inside: avoid; }
figcaption { font-weight: 600; margin-bottom: 0.35rem; }
figcaption span { display: block; color: var(--muted); font-weight: 400; font-size: 0.875rem; }
svg { display: block; width: 100%; height: auto; }
@media (max-width: 32rem) { svg text { font-size: 12.5px !important; } }
.key { display: flex; flex-wrap: wrap; gap: 0.1rem 1rem; list-style: none; margin: 0 0 0.35rem;
  padding: 0; font-size: 0.875rem; }
.key li { margin: 0; display: flex; align-items: center; gap: 0.4rem; }
.key li::before { content: ""; width: 1.1rem; border-top: 0.2rem solid var(--key); }
.key .area::before { width: 0.7rem; border-top-width: 0.7rem; }
.key .dashes::before { border-top-style: dashed; }
.key .dots::before { border-top-style: dotted; }
details { border-top: 1px solid var(--grid); padding: 0.6rem 0; }
details:last-of-type { border-bottom: 1px solid var(--grid); }
summary { cursor: pointer; font-weight: 600; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 0.5rem 0 1rem; font-size: 0.9rem;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--muted); padding-bottom: 0.3rem; }
th, td { padding: 0.25rem 1.1rem 0.25rem 0; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--grid); }
th { font-weight: 600; }
th[scope="row"] { font-weight: 400; }
th:first-child, td.text, th.text { text-align: left; }
td.text { max-width: 32rem; overflow-wrap: anywhere; }
td:not(.text) { white-space: nowrap; }
code { font: 0.85em ui-monospace, monospace; color: var(--muted); overflow-wrap: anywhere; }
li { margin: 0.3rem 0; max-width: 75ch; }
footer { color: var(--muted); font-size: 0.875rem; margin-top: 2rem; }
@media print { details > * { display: block; } }
"""
)

"""Pages from the ledger: what ran, what it gave, what failed and why, in one file that opens anywhere.

The problem: a table of numbers is trusted by whoever made it. The idea: a report is a *view*: it is drawn again from
records and attempts whenever it is asked for, shows the failures beside the successes, and holds every figure, style
and picture inside one HTML file.

`marin.reports.run_report.write_run_report` is the entry; `marin.reports.view` is what a page shows as plain data.
"""

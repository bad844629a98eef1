"""Pictures of partitions at work: who has which SM, and what ran when, as SVG, as a page, and as a Perfetto trace."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import mkdtemp

from cuda_gctx import Device, Partitions, Timeline, tune

MS = 1_000_000


def work(parts: Partitions, timeline: Timeline) -> None:
    """Stands for a program: long chunks in one partition, short steps in another, other work in the background."""
    rest, control = parts.rest.stream, parts.control.stream
    sample = parts.control.stream_pool(1)[0]
    for chunk in range(4):
        with timeline.span(rest, f"chunk {chunk}"):
            tune.spin(rest, 2 * parts.rest.sm_count, 2 * MS)
        for step in range(4 * chunk, 4 * chunk + 4):
            with timeline.span(control, f"step {step}"):
                tune.spin(control, parts.control.sm_count, MS // 2)
            if step % 2:
                sample.wait(control)
                with timeline.span(sample, "sample"):
                    tune.spin(sample, 4, MS // 4)
    if "background" in parts:
        with timeline.span(parts.background.stream, "everything else"):
            tune.spin(parts.background.stream, parts.background.sm_count, 5 * MS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--pictures", type=Path, metavar="FOLDER", help="write the SVG pictures there, and nothing else"
    )
    folder: Path | None = parser.parse_args().pictures
    with Device(0).partition(control=16, rest=0.8) as parts:
        report = parts.verify()
        timeline = Timeline(parts)
        work(parts, timeline)
        trace = timeline.read()

        to = folder or Path(mkdtemp())
        (to / "sm-map.svg").write_text(report.sm_map().svg(), encoding="utf-8")
        trace.svg(to / "timeline.svg")
        if folder is None:
            trace.html(to / "timeline.html")  # for a browser
            trace.chrome_trace(to / "timeline.json")  # for ui.perfetto.dev
        print(report.sm_map())
        print(trace)
        print(f"written to {to}: {', '.join(sorted(path.name for path in to.iterdir()))}")


if __name__ == "__main__":
    main()

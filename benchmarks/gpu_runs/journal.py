"""Results that are on disk as soon as they are measured.

A GPU comes seldom and for minutes: a script that is stopped has to leave what
it has. The scripts beside this file import it first, since it puts the other
benchmarks on the path.
"""

import json
import os
import pathlib
import sys
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import common

FOLDER = pathlib.Path("runs", "gpu")


def make_parser(description, seconds):
    """A parser with the options of all GPU runs.

    Args:
        description: The script's docstring.
        seconds: Default of `--seconds`.
    """
    parser = common.make_parser(description)
    parser.set_defaults(output=FOLDER, gpu=True)
    parser.add_argument(
        "--seconds",
        type=common.positive,
        default=seconds,
        help="after which nothing new is begun; default: %(default)s",
    )
    return parser


def parse(parser, argv=None):
    """`common.parse`; TensorFlow and grain are as missing as they are there."""
    args = common.parse(parser, argv)
    if args.pretend:
        sys.modules.update(tensorflow=None, grain=None)
    return args


def chosen(option, given, known):
    """What an option names, all without it; ends where it names another.

    Args:
        option: Of the command line.
        given: Its value, or None.
        known: Dict of what there is, by name.
    """
    unknown = [name for name in given or () if name not in known]
    if unknown:
        raise SystemExit(
            f"{option} must be of {', '.join(known)}. "
            f"Received: {', '.join(unknown)}"
        )
    return {name: known[name] for name in given or known}


class Journal:
    """Rows of a result, written anew at each row.

    Args:
        args: From `common.parse`.
        benchmark: Name of the file.
        **settings: What else to record.
    """

    def __init__(self, args, benchmark, **settings):
        device = common.gpu_name(args.backend) or common.cpu_name()
        self.seconds = args.seconds
        self.result = {
            "benchmark": benchmark,
            "backend": args.backend,
            "command": common.command_line(args),
            "device": common.PRETENDED if args.pretend else device,
            "pretended": args.pretend,
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
            "versions": common.versions(args.backend),
            "commit": args.commit or common.commit(),
            "settings": settings,
            "rows": [],
            "failed": [],
        }
        self.path = args.output / f"{benchmark}.json"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.write()

    @property
    def left(self):
        """Seconds until nothing new is begun."""
        return self.seconds - (time.perf_counter() - common.STARTED)

    def add(self, **row):
        """Print a row and keep it."""
        self.result["rows"].append(row)
        self.write()
        print("  ".join(f"{k}: {common.cell(v)}" for k, v in row.items()))
        sys.stdout.flush()

    def attempt(self, what, function, *args):
        """The function's result; None and a note where it fails.

        Args:
            what: Name of the attempt, for the note.
            function: Called with `args`.
            *args: Of the function.
        """
        if self.left < 0:
            self.fail(what, "no time was left")
            return None
        try:
            return function(*args)
        except Exception:
            self.fail(what, traceback.format_exc(limit=-8))
            return None

    def fail(self, what, why):
        """Note what could not be measured."""
        self.result["failed"].append({"what": what, "why": why})
        self.write()
        print(f"{what} failed: {why}", flush=True)

    def write(self):
        """Write all that is known."""
        now = time.perf_counter() - common.STARTED
        self.result["seconds"] = round(now, 1)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.result, indent=1) + "\n")
        os.replace(new, self.path)

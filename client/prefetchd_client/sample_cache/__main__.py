"""This module is `python -m prefetchd_client.sample_cache`, which runs `prefetchd cache build`; that has checked the
arguments."""

from __future__ import annotations

import argparse
import sys

from prefetchd.wire.byte_sizes import format_bytes
from prefetchd.wire.cache_directory import read_description
from prefetchd.wire.errors import CallerError, PrefetchdError


def main() -> int:
    """Builds the cache. Returns the exit code: 0 all is stored, 1 something is not, 130 interrupted."""
    options = _options()
    try:
        _build(options)
    except KeyboardInterrupt:
        print("interrupted; what is stored stays", file=sys.stderr)
        return 130
    except PrefetchdError as error:
        print(f"prefetchd: {error}", file=sys.stderr)
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="prefetchd cache build")
    parser.add_argument("dataset")
    parser.add_argument("--path", default="")
    parser.add_argument("--args", default="{}")
    parser.add_argument("--limit")
    parser.add_argument("--fingerprint-extra")
    parser.add_argument("--trust", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--socket")
    return parser.parse_args()


def _build(options: argparse.Namespace) -> None:
    # Here: what is wrong with the arguments is told before torch is imported.
    from prefetchd_client import SampleCache
    from prefetchd_client.declared import make

    made = make(options.dataset, options.args)
    if isinstance(made, SampleCache):
        if options.path or options.limit or options.fingerprint_extra:
            raise CallerError(f"{options.dataset} made a SampleCache, which has its path and its limit")
        cache = made
    elif not options.path:
        raise CallerError(f"{options.dataset} made a {type(made).__name__}; allowed without PATH: a SampleCache")
    else:
        extra, trust = options.fingerprint_extra, options.trust
        cache = SampleCache(made, options.path, limit=options.limit, fingerprint_extra=extra, trust=trust)
    stored = cache.build(workers=options.workers, socket=options.socket)
    room = ""
    if (beyond := len(cache) - cache.stored()) > 0:
        told = read_description(cache.directory)
        size = format_bytes(told.rows * told.sample_bytes)
        room = f"; {beyond:,} have no place: the cache was made with room for {told.rows:,} samples, {size} (limit=)"
    print(f"stored {stored:,} samples, {cache.stored():,} in all{room}: {cache.directory}")


if __name__ == "__main__":
    sys.exit(main())

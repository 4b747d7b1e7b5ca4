"""The connection to a Dask scheduler: its address, the client, and the event loop of that.

The loop runs in a thread of its own, and what Dask would log is silent: a scheduler that does not
answer, or never was one, is one sentence, soon.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from bubbleviz.errors import InputError
from bubbleviz.interpret.fleet.dask_cluster import PATIENCE_S, Client, Cluster, within
from bubbleviz.model.bounded_files import read_bounded

#: How long the connection may take to close, seconds.
_CLOSING_S = 1.0
#: Loggers that would print tracebacks of what becomes one sentence here.
_LOGGERS = ("distributed", "tornado")
#: A scheduler file holds an address and what the workers are; any is smaller.
_MOST_BYTES = 64 << 20
_GIVE = "give the address of a scheduler, such as tcp://HOST:8786, or its scheduler file (.json)"


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Yield the cluster at an address.

    Args:
        address: of the scheduler, or the path of its scheduler file.

    Raises:
        InputError: there is no scheduler, or no Dask here.
    """
    try:
        import distributed  # noqa: F401  # all that it shows is whether it is there
    except ImportError as error:
        raise InputError(
            "--dask needs Dask, which is not installed; install it with: pip install "
            "'bubbleviz[dask]'"
        ) from error
    place = _address_in(address) if address.endswith(".json") else address
    _check_address(address, place)
    with _quiet_loggers(), _large_arguments(), _loop() as loop:
        try:
            connection = asyncio.run_coroutine_threadsafe(_client_of(place), loop)
            client = connection.result()
        except Exception as error:  # what Dask raises depends on what answers there
            raise InputError(
                f"--dask {address}: no scheduler answers there ({_reason(error)}); {_GIVE} of one "
                "that runs"
            ) from error
        try:
            yield Cluster(address, loop, client)
        finally:
            with suppress(Exception):  # of a connection that is lost already
                closing = within(_CLOSING_S, client.close(timeout=_CLOSING_S))
                asyncio.run_coroutine_threadsafe(closing, loop).result()


async def _client_of(place: str) -> Client:
    """Return a client of the scheduler at an address.

    Raises:
        Exception: none answers.
    """
    import distributed

    client: Client = distributed.Client(  # type: ignore[no-untyped-call]  # as said above
        place, timeout=PATIENCE_S, set_as_default=False, asynchronous=True
    )
    try:
        started: Client = await within(PATIENCE_S, client)
        identity = await within(PATIENCE_S, started.scheduler.identity())
        if "workers" not in identity:
            raise ValueError(f"a {identity.get('type', 'server')} of Dask does")
    except BaseException:
        with suppress(Exception):
            await within(_CLOSING_S, client.close(timeout=_CLOSING_S))
        raise
    return started


def _reason(error: BaseException) -> str:
    """Return why no scheduler answers, in a few words."""
    if isinstance(error, MemoryError):  # the length that its first bytes would be
        return "what answers speaks another protocol"
    if isinstance(error, TypeError) and "ssl_context" in str(error):
        return "Dask's configuration here, distributed.comm.tls, names no certificates"
    return " ".join(str(error).split())[:200] or type(error).__name__


def _check_address(address: str, place: str) -> None:
    """Raise InputError unless an address names a host and a port of a known protocol."""
    from distributed.comm.addressing import get_address_host_port, parse_address

    try:
        scheme, _ = parse_address(place)
        host, port = get_address_host_port(place)
        sound = scheme != "inproc" and bool(host.strip()) and 0 < port < 1 << 16
        # What no resolver takes: labels that are empty or too long, and characters out of place.
        sound = sound and host.isprintable() and bool(host.encode("idna"))
    except Exception:  # protocols refuse what they do not understand in ways of their own
        sound = False
    if not sound:
        source = "" if place == address else f"its address {place!r} "
        raise InputError(
            f"--dask {address}: {source}is no address of a Dask scheduler; {_GIVE}"
        ) from None


def _address_in(file: str) -> str:
    """Return the address that a scheduler file holds.

    Raises:
        InputError: it is none.
    """
    hint = "give the one that dask scheduler --scheduler-file wrote"
    content = read_bounded(file, _MOST_BYTES, "a scheduler file", hint)
    try:
        return str(json.loads(content)["address"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"--dask {file}: is no scheduler file that can be read ({type(error).__name__}); {hint}"
        ) from error


@contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Silence what would be logged; the report, or an error, has all of it.

    Dask itself stays silent, as it logs what the garbage collector does afterwards.
    """
    # Dask gives loggers below these levels of their own.
    names = [
        n for n in (*_LOGGERS, *logging.root.manager.loggerDict) if n.split(".")[0] in _LOGGERS
    ]
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in before.items():
            if not name.startswith("distributed"):
                logging.getLogger(name).setLevel(level)


@contextmanager
def _large_arguments() -> Iterator[None]:
    """Have Dask take arguments of megabytes without a warning; few are on their way at a time."""
    import dask

    with dask.config.set({"distributed.admin.large-graph-warning-threshold": 1 << 60}):
        yield


@contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Yield an event loop that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    # It would print the errors of what nobody waits for any more.
    loop.set_exception_handler(lambda *_: None)
    thread = threading.Thread(target=loop.run_forever, name="bubbleviz-dask", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(_end_tasks(), loop).result(2 * _CLOSING_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSING_S)
        if not thread.is_alive():
            loop.close()


async def _end_tasks() -> None:
    """Cancel all that the loop still does, as what is pending when it closes is logged."""
    pending = asyncio.all_tasks() - {asyncio.current_task()}
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending, timeout=_CLOSING_S)

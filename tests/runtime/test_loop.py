"""The loop of a program."""

from __future__ import annotations

import asyncio

import uvloop

from halfmoon.runtime.loop import run_loop


def test_a_program_runs_on_uvloop_and_gets_its_result() -> None:
    async def main() -> type[asyncio.AbstractEventLoop]:
        return type(asyncio.get_running_loop())

    assert run_loop(main()) is uvloop.Loop

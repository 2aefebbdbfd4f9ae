"""Calls of a chief and moments of a ps whose annex was taken out."""

from typing import Any, cast

import pytest

from ropewalk.core.errors import ConfigurationError, CutVoidError
from ropewalk.net.auth.guard import Visitor
from ropewalk.proto.v1 import chief_pb2, ps_pb2
from ropewalk.server.chief.parts import calls_of
from ropewalk.server.ps.parts import NoMoments


def test_a_call_that_no_part_serves_is_refused_by_its_name() -> None:
    class Part:
        def StopJob(self, request: Any, _: Visitor) -> str:
            return "served"

    calls = calls_of([Part()])
    visitor = cast(Visitor, None)
    assert cast(Any, calls["StopJob"])(chief_pb2.StopJobRequest(), visitor) == "served"
    with pytest.raises(ConfigurationError, match="this chief does not serve TakeCut: the annex"):
        calls["TakeCut"](chief_pb2.TakeCutRequest(), visitor)


def test_a_ps_without_moments_refuses_one_by_its_number() -> None:
    store, folder = cast(Any, None), cast(Any, None)
    with pytest.raises(CutVoidError, match="no moment 7: the annex moments was taken out"):
        NoMoments().save(store, folder, ps_pb2.SaveShardsRequest(cut=7))
    with pytest.raises(CutVoidError, match="no moment 8"):
        NoMoments().rows(store, 8, None)

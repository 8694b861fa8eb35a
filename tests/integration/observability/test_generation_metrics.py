"""The metrics of generators and streams: from a model process to a scrape."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.deployments.shared import SharedDeployment
from tests.harness.deployments.site import Site
from tests.harness.http.events import reading
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS
from tests.integration.jobs.streams.test_generator import opened
from tests.integration.observability.test_metrics import samples

MODELS: dict[str, dict[str, Any]] = {
    "m": {"handler": f"{HANDLERS / 'generation/generating.py'}:Words"},
    "pieces": {"handler": f"{HANDLERS / 'generation/yielding.py'}:Yielding"},
    "echo": {"handler": "echo"},
}
FIRST = "headrace_time_to_first_token_seconds"
NEXT = "headrace_time_per_output_token_seconds"
IN = "headrace_prompt_tokens_total"
OUT = "headrace_generation_tokens_total"
JOB = "headrace_job_seconds_sum"
GAUGES = (
    "headrace_generator_requests",
    "headrace_generator_cache_used_tokens",
    "headrace_generator_cache_tokens",
)


@pytest.fixture(scope="module")
def site(
    shared_deployment: SharedDeployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("metrics")
    with shared_deployment.site(folder, MODELS) as found:
        yield found


def gauges(site: Site, model: str = "m") -> list[float | None]:
    return [samples(site.api, name).get((model,)) for name in GAUGES]


def counted(site: Site, model: str = "m") -> dict[str, float]:
    names = (f"{FIRST}_count", f"{FIRST}_sum", f"{NEXT}_count", f"{NEXT}_sum", IN, OUT, JOB)
    return {name: samples(site.api, name)[model,] for name in names}


def grown(site: Site, before: dict[str, float], tokens: int) -> dict[str, float]:
    """What a test has added, once its tokens are there: all that came before them is there too."""
    wait_until(lambda: counted(site)[OUT] == before[OUT] + tokens, "the tokens are counted")
    wait_until(lambda: gauges(site) == [0, 0, 100], "the end is shown")
    return {name: value - before[name] for name, value in counted(site).items()}


def test_a_request_is_shown_while_it_runs_and_counted_when_it_ends(
    site: Site, tmp_path: Path
) -> None:
    before = counted(site)
    job_id = site.submit({"words": 4, "cost": 40, "until": str(tmp_path)})
    opened(tmp_path, 0)
    wait_until(lambda: gauges(site) == [1, 40, 100], "the request is shown")
    wait_until(
        lambda: counted(site)[f"{FIRST}_count"] == before[f"{FIRST}_count"] + 1,
        "its first piece is shown",
    )
    assert counted(site)[OUT] == before[OUT], "tokens count at the end"
    opened(tmp_path, 1, 2, 3)
    site.ended(job_id)
    new = grown(site, before, 4)
    assert (new[f"{FIRST}_count"], new[f"{NEXT}_count"]) == (1, 3)
    assert 0 < new[f"{FIRST}_sum"] < new[JOB]
    assert 0 < new[f"{NEXT}_sum"] < new[JOB]


def test_a_request_that_goes_on_elsewhere_has_one_first_token(site: Site, tmp_path: Path) -> None:
    before = counted(site)
    job_id = site.submit({"words": 5, "kills": 3, "until": str(tmp_path)})
    with reading(site.stream(job_id)) as reader:
        opened(tmp_path, 0)
        reader.wait_for("pieces")
        opened(tmp_path, 1, 2, 3, 4)
        assert reader.wait_for("ended").data["attempts"] == 2
    assert grown(site, before, 5)[f"{FIRST}_count"] == 1


def test_a_cancelled_request_takes_nothing_of_the_cache(site: Site, tmp_path: Path) -> None:
    before = counted(site)
    job_id = site.submit({"words": 9, "cost": 7, "until": str(tmp_path)})
    wait_until(lambda: gauges(site) == [1, 7, 100], "the request is shown")
    assert site.api.http.delete(f"/api/v1/jobs/{job_id}").json()["outcome"] == "asked"
    assert site.ended(job_id)["status"] == "cancelled"
    grown(site, before, 0)


def test_the_first_tokens_of_offline_jobs_do_not_count(site: Site) -> None:
    before = counted(site)
    site.ended(site.submit({"words": 2}, priority=9))
    assert grown(site, before, 2)[f"{FIRST}_count"] == 0


def test_a_static_batch_has_first_tokens_only(site: Site, tmp_path: Path) -> None:
    assert ("pieces",) not in samples(site.api, f"{FIRST}_count")
    site.ended(site.submit({"pieces": [None, "a", "b"]}, "pieces"))

    def shown() -> bool:
        return samples(site.api, f"{FIRST}_count").get(("pieces",)) == 1

    wait_until(shown, "its first piece is shown")
    for name in (f"{NEXT}_count", OUT, IN, *GAUGES):
        assert samples(site.api, name).keys() == {("m",)}, name

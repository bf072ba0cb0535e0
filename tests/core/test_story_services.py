"""The story's services keep an honest history: what they did stands there, once for each time they did it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from amends.local.story import shipping, warehouse
from amends.local.story.gate import call_of, make_gate
from amends.local.story.http_service import Routes, Service, make_server, pattern_of
from amends.local.story.remote import NotFound, Refused, Unavailable, call


def run_in_thread(server: ThreadingHTTPServer) -> Callable[[], None]:
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()

    def stop() -> None:
        server.shutdown()
        thread.join()
        server.server_close()

    return stop


def serve_routes(routes: Routes, folder: Path) -> Iterator[str]:
    service = Service(routes, folder / "service.sqlite")
    server = make_server(service)
    stop = run_in_thread(server)
    yield f"http://127.0.0.1:{server.server_address[1]}"
    service.faults.let_go()
    stop()
    service.close()


@pytest.fixture
def warehouse_url(tmp_path: Path) -> Iterator[str]:
    yield from serve_routes(warehouse.ROUTES, tmp_path)


@pytest.fixture
def shipping_url(tmp_path: Path) -> Iterator[str]:
    yield from serve_routes(shipping.ROUTES, tmp_path)


@pytest.fixture
def gate_url(warehouse_url: str) -> Iterator[str]:
    server = make_gate(warehouse_url)
    stop = run_in_thread(server)
    yield f"http://127.0.0.1:{server.server_address[1]}"
    stop()


def effects(base: str) -> list[str]:
    return [entry["effect"] for entry in call("GET", f"{base}/history")]


def wait_until_held(base: str) -> list[dict[str, Any]]:
    for _ in range(10_000):
        if held := call("GET", f"{base}/held"):
            return list(held)
    raise AssertionError("no call was held")


def call_in_thread(*arguments: Any, **options: Any) -> tuple[threading.Thread, list[Exception]]:
    raised: list[Exception] = []

    def run() -> None:
        try:
            call(*arguments, **options)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


RESERVE = {"order": "o-1", "sku": "mug", "quantity": 2}


def test_a_repeated_key_reserves_and_releases_once_and_gets_the_first_answer(warehouse_url: str) -> None:
    answers = [call("POST", f"{warehouse_url}/reservations", RESERVE, key="k") for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    for _ in range(3):
        call("POST", f"{warehouse_url}/reservations/{answers[0]['id']}/release", {}, key="u")
    assert effects(warehouse_url) == ["stock reserved", "stock released"]
    assert call("GET", f"{warehouse_url}/stock") == {"mug": warehouse.STOCK_AT_START}


def test_a_release_under_a_new_key_is_a_second_effect_and_shows(warehouse_url: str) -> None:
    made = call("POST", f"{warehouse_url}/reservations", RESERVE, key="k")
    for key in ("u-1", "u-2"):
        call("POST", f"{warehouse_url}/reservations/{made['id']}/release", {}, key=key)
    assert effects(warehouse_url).count("stock released") == 2
    assert call("GET", f"{warehouse_url}/stock")["mug"] > warehouse.STOCK_AT_START


def test_cancelling_an_order_twice_changes_nothing_more(warehouse_url: str) -> None:
    made = call("POST", f"{warehouse_url}/orders", {"order": "o-1"}, key="k")
    for _ in range(2):
        assert call("DELETE", f"{warehouse_url}/orders/{made['id']}")["state"] == "cancelled"
    assert effects(warehouse_url) == ["order booked", "order cancelled"]
    assert call("GET", f"{warehouse_url}/orders?key=k")[0]["state"] == "cancelled"


def test_two_calls_make_two_labels_and_each_is_found_by_its_reference(shipping_url: str) -> None:
    for reference in ("r-1", "r-2"):
        call("POST", f"{shipping_url}/labels", {"order": "o-1", "address": "here", "reference": reference})
    assert [label["reference"] for label in call("GET", f"{shipping_url}/labels?reference=r-2")] == ["r-2"]
    assert call("GET", f"{shipping_url}/labels?reference=r-3") == []
    assert effects(shipping_url) == ["label bought", "label bought"]


def test_a_call_held_after_its_effect_has_had_it_and_gets_no_answer(shipping_url: str) -> None:
    call("POST", f"{shipping_url}/faults", {"call": "POST /labels", "fault": "hang_after_effect", "times": 1})
    thread, raised = call_in_thread("POST", f"{shipping_url}/labels", {"order": "o-1", "address": "here"})
    held = wait_until_held(shipping_url)
    assert held[0]["call"] == "POST /labels"
    assert effects(shipping_url) == ["label bought"]
    call("DELETE", f"{shipping_url}/held")
    thread.join()
    assert isinstance(raised[0], Unavailable)
    call("POST", f"{shipping_url}/labels", {"order": "o-2", "address": "here"})  # the switch counted down


def test_a_call_held_before_its_effect_never_has_it(shipping_url: str) -> None:
    call("POST", f"{shipping_url}/faults", {"call": "POST /labels", "fault": "hang_before_effect"})
    thread, raised = call_in_thread("POST", f"{shipping_url}/labels", {"order": "o-1", "address": "here"})
    wait_until_held(shipping_url)
    call("DELETE", f"{shipping_url}/held")
    thread.join()
    assert isinstance(raised[0], Unavailable)
    assert effects(shipping_url) == []


@pytest.mark.parametrize(("fault", "error"), [("down", Unavailable), ("refuse", Refused)])
def test_a_service_that_is_down_or_refuses_does_nothing(shipping_url: str, fault: str, error: type[Exception]) -> None:
    call("POST", f"{shipping_url}/faults", {"call": "POST /labels", "fault": fault, "times": 5})
    with pytest.raises(error):
        call("POST", f"{shipping_url}/labels", {"order": "o-1", "address": "here"})
    assert effects(shipping_url) == []
    call("DELETE", f"{shipping_url}/faults")
    call("POST", f"{shipping_url}/labels", {"order": "o-1", "address": "here"})


def test_bad_calls_are_refused_and_leave_no_effect(warehouse_url: str) -> None:
    with pytest.raises(NotFound):
        call("POST", f"{warehouse_url}/reservations/res_none/release", {}, key="u")
    with pytest.raises(NotFound):
        call("GET", f"{warehouse_url}/nowhere")
    with pytest.raises(Refused, match="positive"):
        call("POST", f"{warehouse_url}/reservations", {**RESERVE, "quantity": 0}, key="k")
    with pytest.raises(Refused, match="no such fault"):
        call("POST", f"{warehouse_url}/faults", {"call": "POST /orders", "fault": "explode"})
    assert effects(warehouse_url) == []


def test_a_key_of_another_call_is_refused(warehouse_url: str) -> None:
    call("POST", f"{warehouse_url}/orders", {"order": "o-1"}, key="k")
    with pytest.raises(Refused, match="belongs to POST /orders"):
        call("POST", f"{warehouse_url}/reservations", RESERVE, key="k")


def test_the_gate_passes_calls_on_and_can_hold_the_answer_of_one(gate_url: str, warehouse_url: str) -> None:
    call("POST", f"{gate_url}/reservations", RESERVE, key="k-1")
    call("POST", f"{gate_url}/faults", {"call": "POST /reservations", "fault": "hang_after_effect"})
    thread, raised = call_in_thread("POST", f"{gate_url}/reservations", RESERVE, key="k-2")
    assert wait_until_held(gate_url)[0]["key"] == "k-2"
    assert effects(warehouse_url) == ["stock reserved", "stock reserved"]
    call("DELETE", f"{gate_url}/held")
    thread.join()
    assert isinstance(raised[0], Unavailable)
    call("POST", f"{gate_url}/faults", {"call": "POST /reservations", "fault": "down"})
    with pytest.raises(Unavailable, match="503"):
        call("POST", f"{gate_url}/reservations", RESERVE, key="k-3")


def test_calls_are_named_by_method_and_pattern() -> None:
    assert pattern_of("POST", "/labels/lbl_1/void") == ("POST /labels/{}/void", ("lbl_1",))
    assert pattern_of("GET", "/labels") == ("GET /labels", ())
    assert call_of("POST", "/v1/payment_intents/pi_1/confirm") == "POST /v1/payment_intents/{}/confirm"
    assert call_of("POST", "/v1/refunds") == "POST /v1/refunds"

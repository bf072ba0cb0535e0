"""What a compensator refuses before it opens anything."""

from __future__ import annotations

import pytest

from amends.compensators.settings import CompensatorSettings
from amends.compensators.starting import opened_registry
from amends.kafka.errors import SettingsWrong


@pytest.mark.parametrize("url", ["http://redis:6379/0", "redis:6379", "redis://:ge/heim@redis:6379/0"])
async def test_what_is_no_url_of_a_redis_is_refused_and_its_password_is_not_shown(url: str) -> None:
    settings = CompensatorSettings.model_validate({"redis_url": url})
    with pytest.raises(SettingsWrong, match="AMENDS_COMPENSATOR__REDIS_URL") as raised:
        async with opened_registry(settings, lambda: None):
            pass
    assert "heim" not in str(raised.value)
    assert raised.value.__suppress_context__

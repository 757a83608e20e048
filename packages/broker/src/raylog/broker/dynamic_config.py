"""Settings that change while the broker runs (KIP-226), and which changes are allowed.

The strongest layer of a broker's settings are its own dynamic overrides (/config/brokers/B), then those for
all brokers (/config/brokers/<default>), then what it was started with, then the defaults. A topic's settings
lie over its brokers'. The controller tells overrides with the cluster's state; each broker lays them over its
own static settings here.
"""

from __future__ import annotations

from collections.abc import Mapping

from raylog.broker.config import (
    AUTO_LEADER_REBALANCE_ENABLE,
    BROKER_SETTINGS,
    DEFAULT_REPLICATION_FACTOR,
    GROUP_INITIAL_REBALANCE_DELAY_MS,
    GROUP_MAX_SESSION_TIMEOUT_MS,
    GROUP_MAX_SIZE,
    GROUP_MIN_SESSION_TIMEOUT_MS,
    LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS,
    LEADER_IMBALANCE_PER_BROKER_PERCENTAGE,
    MIN_INSYNC_REPLICAS,
    NUM_PARTITIONS,
    TOPIC_SETTINGS,
    UNCLEAN_LEADER_ELECTION_ENABLE,
)
from raylog.broker.config.groups import GroupRules
from raylog.broker.events import EventLog
from raylog.coordination.control.leadership import ElectionRules
from raylog.coordination.controller.events import Rebalance, TopicDefaults
from raylog.coordination.metadata.configs import DEFAULT_BROKER, check_overrides_size
from raylog.coordination.metadata.model import ClusterState, TopicState
from raylog.protocol.errors import InvalidConfig, InvalidRequest
from raylog.protocol.ids import BrokerId
from raylog.protocol.settings import Scope, Settings, SettingsTable

logger = EventLog(__name__)


def broker_settings(static: Settings, broker_id: BrokerId, dynamic: Mapping[str, Mapping[str, str]]) -> Settings:
    """The broker's settings in force: two dynamic layers over ``static``, empty ones included.

    ``dynamic``: overrides as text by broker id as text, or DEFAULT_BROKER. What this release cannot take is
    told in the log and left out, so that one bad entry does not undo the others.
    """
    for_all = _readable(BROKER_SETTINGS, dynamic.get(DEFAULT_BROKER, {}), "all brokers")
    own = _readable(BROKER_SETTINGS, dynamic.get(str(broker_id), {}), f"broker {broker_id}")
    return Settings(BROKER_SETTINGS, own, base=Settings(BROKER_SETTINGS, for_all, base=static))


def topic_defaults(broker: Settings) -> TopicDefaults:
    """What a topic gets that is made without numbers; ``broker``: the controller's settings in force."""
    return TopicDefaults(broker[NUM_PARTITIONS], broker[DEFAULT_REPLICATION_FACTOR])


def group_rules(static: Settings) -> GroupRules:
    """What members of groups may ask for, and what their groups wait for."""
    return GroupRules(
        min_session_timeout_ms=static[GROUP_MIN_SESSION_TIMEOUT_MS],
        max_session_timeout_ms=static[GROUP_MAX_SESSION_TIMEOUT_MS],
        initial_rebalance_delay_ms=static[GROUP_INITIAL_REBALANCE_DELAY_MS],
        max_size=static[GROUP_MAX_SIZE],
    )


def election_rules(static: Settings, broker_id: BrokerId) -> ElectionRules:
    """Whom the controller lets lead, as the topics' settings in force on broker ``broker_id`` say."""

    def of(topic: TopicState, state: ClusterState) -> Settings:
        return settings_of(topic, broker_settings(static, broker_id, state.broker_configs))

    return ElectionRules(
        min_isr=lambda topic, state: of(topic, state)[MIN_INSYNC_REPLICAS],
        unclean=lambda topic, state: of(topic, state)[UNCLEAN_LEADER_ELECTION_ENABLE],
    )


def rebalance_of(broker: Settings) -> Rebalance:
    """When leadership goes back to preferred replicas; ``broker``: the controller's settings in force."""
    return Rebalance(
        broker[AUTO_LEADER_REBALANCE_ENABLE],
        broker[LEADER_IMBALANCE_PER_BROKER_PERCENTAGE],
        broker[LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS] * 1000,
    )


def settings_of(topic: TopicState, broker: Settings) -> Settings:
    """The topic's settings in force on a broker; an override that cannot be taken is told and left out."""
    return Settings(TOPIC_SETTINGS, _readable(TOPIC_SETTINGS, topic.configs, f"topic {topic.name}"), parent=broker)


def _readable(table: SettingsTable, texts: Mapping[str, str], whose: str) -> dict[str, object]:
    values, refused = table.parse_known(texts)
    complaints = [str(error) for error in refused]
    for name in [name for name in values if table[name].scope is Scope.STATIC]:
        del values[name]
        complaints.append(f"{name} cannot change while a broker runs")
    for complaint in complaints:
        logger.error("dynamic setting ignored", of=whose, reason=complaint)
    return values


def check_topic_overrides(configs: Mapping[str, str]) -> None:
    """Raises InvalidConfig when a topic cannot have these overrides."""
    check_overrides_size(configs)
    TOPIC_SETTINGS.parse(configs)


def check_broker_overrides(configs: Mapping[str, str]) -> None:
    """Raises InvalidRequest, as Kafka does (KAFKA-13609), when a running broker cannot take these overrides."""
    try:
        check_overrides_size(configs)
        BROKER_SETTINGS.parse(configs)
    except InvalidConfig as error:
        raise InvalidRequest(str(error)) from error
    for name in configs:
        if BROKER_SETTINGS[name].scope is Scope.STATIC:
            raise InvalidRequest(f"{name} cannot change while a broker runs: set it where the broker is started")

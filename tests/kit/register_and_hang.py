"""A process that registers a broker, says so, and waits to be killed: ``python -m … ADDRESS SESSION_FILE``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from raylog.coordination.membership.registration import BrokerRegistration, SessionFile
from raylog.coordination.metadata.model import BrokerInfo, Endpoint
from raylog.coordination.zookeeper.store import ZkStore
from raylog.protocol.ids import BrokerEpoch, BrokerId

BROKER = BrokerInfo(BrokerId(1), BrokerEpoch(-1), (Endpoint("PLAINTEXT", "localhost", 9092),))

if __name__ == "__main__":
    store = ZkStore(sys.argv[1], session_timeout_ms=60_000)
    store.start()
    registered = BrokerRegistration(store, SessionFile(Path(sys.argv[2]))).register(BROKER)
    print(registered.epoch, flush=True)
    signal.pause()

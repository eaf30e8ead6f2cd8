"""Changes of commits go to a compacted topic of Kafka; a consumer builds a copy of it."""

import sys

import numpy as np

import embedrock
from embedrock.follow import Follower, Kafka, KafkaPublisher

URL = sys.argv[1]  # kafka://localhost:9092/ads, made with cleanup.policy=compact
KEYS = np.arange(1000)

with embedrock.open("ads.store", memory="16MiB") as store, KafkaPublisher(URL) as topic:
    ads = store.table("ads", 8, optimizer="adagrad", initializer=0.0)
    ads.put(KEYS, np.ones((1000, 8), np.float32))
    store.commit(step=1)
    print(topic.publish(store))

    ads.update(KEYS[:10], np.ones((10, 8), np.float32), lr=0.5)
    ads.delete([999])
    store.commit(step=2)
    print(topic.publish(store))

# Elsewhere, whenever: the topic has the newest of each row.
with embedrock.open("copy.store", memory="16MiB") as copy, Kafka(URL) as source:
    rows = copy.table("ads", 8, optimizer="none", initializer=0.0)
    Follower(copy, source).run(once=True)
    print(len(rows), "rows, row 0 is", rows.get(0)[0], rows.contains([999]))

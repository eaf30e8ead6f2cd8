"""A trainer writes its updates to a topic of Kafka; another process applies them to its store."""

import sys

import numpy as np
from confluent_kafka import Producer

import embedrock
from embedrock.follow import Follower, Kafka, KafkaWriter

URL = sys.argv[1]  # kafka://localhost:9092/ads
KEYS = np.arange(1000)

with embedrock.open("ads.store", memory="4MiB") as store:
    store.table("ads", 8, optimizer="adagrad", initializer=0.0)
    store.commit(step=1)

with KafkaWriter(URL) as topic:  # the trainer's side
    topic.put("ads", KEYS, np.ones((1000, 8), np.float32))
    topic.update("ads", KEYS[:10], np.ones((10, 8), np.float32), lr=0.5)
    topic.sync()

with embedrock.open("ads.store", memory="4MiB", create=False) as store, Kafka(URL) as source:
    followed = Follower(store, source, start="begin").run(once=True)
    print(followed.records, "records, row 0 is", store.table("ads").get(0)[0])

# Any producer, of any language, writes rows one by one: a key, and float32 values or null.
_, _, servers, name = URL.split("/")
producer = Producer({"bootstrap.servers": servers})
producer.produce(name, key="ads:0", value=np.full(8, 0.25, "<f4").tobytes())
producer.produce(name, key="ads:999", value=None)
producer.flush()

with embedrock.open("ads.store", memory="4MiB", create=False) as store, Kafka(URL) as source:
    followed = Follower(store, source).run(once=True)
    ads = store.table("ads")
    print(followed.records, "records, row 0 is", ads.get(0)[0], ads.contains([999]))

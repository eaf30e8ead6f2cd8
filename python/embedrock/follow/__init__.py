"""Following a log of updates: rows and the position in the log become durable in one commit.

:class:`LogWriter` writes a log, a directory of segment files (``docs/formats/update-log.md``);
:class:`LogReader` reads it. :class:`KafkaWriter` and :class:`Kafka` do so with a topic of Kafka
(``docs/formats/kafka.md``). :class:`Follower` applies what a source has to a store. The position is
part of each commit, so a process that is killed and started again neither loses nor repeats one
record, gradients included.

:class:`StoreFollower` keeps a copy of a store equal to it, commit by commit, from the changes that
the store itself tells; :class:`KafkaPublisher` writes those to a compacted topic.
"""

from embedrock.follow.follower import Followed, Follower
from embedrock.follow.kafka import Kafka
from embedrock.follow.kafka_writer import KafkaWriter
from embedrock.follow.publisher import KafkaPublisher, Published
from embedrock.follow.reader import LogReader
from embedrock.follow.source import Record, RemoteSource, Source
from embedrock.follow.stores import StoreFollowed, StoreFollower, apply_changes
from embedrock.follow.writer import LogWriter

__all__ = [
    "Followed",
    "Follower",
    "Kafka",
    "KafkaPublisher",
    "KafkaWriter",
    "LogReader",
    "LogWriter",
    "Published",
    "Record",
    "RemoteSource",
    "Source",
    "StoreFollowed",
    "StoreFollower",
    "apply_changes",
]

#!/bin/bash
KAFKA_HEAP_OPTS=${KAFKA_HEAP_OPTS:--Xmx1G -Xms1G}
export KAFKA_HEAP_OPTS
exec /opt/kafka/bin/kafka-run-class.sh kafka.Kafka "$@"

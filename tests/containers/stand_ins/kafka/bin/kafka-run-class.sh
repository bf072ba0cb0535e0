#!/bin/bash
# Runs a class of Kafka's, as the script of that name does.
exec java ${KAFKA_HEAP_OPTS:--Xmx256m} ${KAFKA_JVM_PERFORMANCE_OPTS:-} -XX:-UsePerfData -Djava.awt.headless=true ${KAFKA_OPTS:-} -cp '/opt/kafka/libs/*' "$@"

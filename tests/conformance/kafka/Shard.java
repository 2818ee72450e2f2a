package org.apache.kafka.coordinator.group;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;

import com.fasterxml.jackson.databind.JsonNode;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.PartitionRecord;
import org.apache.kafka.common.metadata.RemoveTopicRecord;
import org.apache.kafka.common.metadata.TopicRecord;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.common.runtime.KRaftCoordinatorMetadataDelta;
import org.apache.kafka.coordinator.common.runtime.KRaftCoordinatorMetadataImage;
import org.apache.kafka.coordinator.group.metrics.GroupCoordinatorMetrics;
import org.apache.kafka.coordinator.group.metrics.GroupCoordinatorMetricsShard;
import org.apache.kafka.coordinator.group.modern.share.ShareGroupConfig;
import org.apache.kafka.image.MetadataDelta;
import org.apache.kafka.image.MetadataImage;
import org.apache.kafka.image.MetadataProvenance;
import org.apache.kafka.image.TopicImage;
import org.apache.kafka.timeline.SnapshotRegistry;

/**
 * One partition's coordinator: Kafka's own GroupCoordinatorShard, with its log and the cluster's
 * topics beside it. A failover makes another shard, which is told the log.
 */
public class Shard {
    private static final TopicPartition PLACE = new TopicPartition("__consumer_offsets", 0);
    private static final GroupCoordinatorMetrics METRICS = new GroupCoordinatorMetrics();
    private static final GroupCoordinatorRecordSerde SERDE = new GroupCoordinatorRecordSerde();
    private static final LogContext LOG = new LogContext();
    private static final int BROKERS = 4;

    final VirtualTime time;
    final VirtualTimer timer;
    final VirtualExecutor executor = new VirtualExecutor();
    /** {key, value} of every record that was written; a value of null is a tombstone. */
    final List log = new ArrayList();
    GroupMetadataManager groups;
    OffsetMetadataManager offsets;
    GroupCoordinatorShard coordinator;

    private final GroupCoordinatorConfig config;
    private final GroupConfigManager groupConfigs;
    private MetadataImage image = MetadataImage.EMPTY;
    private SnapshotRegistry snapshots;
    private long written;

    Shard(VirtualTime time, Map properties) {
        this.time = time;
        this.timer = new VirtualTimer(time);
        this.config = GroupCoordinatorConfig.fromProps(properties);
        ShareGroupConfig share = ShareGroupConfig.fromProps(properties);
        Map defaults = new HashMap(config.extractGroupConfigMap(share));
        this.groupConfigs = new GroupConfigManager(defaults, config, share);
    }

    /** Makes a coordinator of the log as it is; what parked in one before has to be answered. */
    void load() {
        snapshots = new SnapshotRegistry(LOG);
        written = 0L;
        GroupCoordinatorMetricsShard metrics = METRICS.newMetricsShard(snapshots, PLACE);
        groups = new GroupMetadataManager.Builder()
            .withLogContext(LOG).withSnapshotRegistry(snapshots).withTime(time).withTimer(timer)
            .withExecutor(executor).withConfig(config).withGroupConfigManager(groupConfigs)
            .withGroupCoordinatorMetricsShard(metrics)
            .withShareGroupAssignor(
                (org.apache.kafka.coordinator.group.api.assignor.ShareGroupPartitionAssignor)
                    config.shareGroupAssignors().get(0))
            .withAuthorizerPlugin(Optional.empty()).build();
        offsets = new OffsetMetadataManager.Builder()
            .withLogContext(LOG).withSnapshotRegistry(snapshots).withTime(time)
            .withGroupMetadataManager(groups).withGroupCoordinatorConfig(config)
            .withGroupCoordinatorMetricsShard(metrics).build();
        coordinator = new GroupCoordinatorShard(
            LOG, groups, offsets, time, timer, config, METRICS, metrics);
        snapshots.idempotentCreateSnapshot(0L);
        for (Object each : log) {
            byte[][] record = (byte[][]) each;
            apply((CoordinatorRecord) SERDE.deserialize(
                ByteBuffer.wrap(record[0]), record[1] == null ? null : ByteBuffer.wrap(record[1])));
        }
        commit();
        coordinator.onLoaded(new KRaftCoordinatorMetadataImage(image));
    }

    void unload() {
        timer.cancelAll();
    }

    /** Writes records into the log; `replay`: the coordinator learns from them what it decided. */
    void write(List records, boolean replay) {
        for (Object each : records) {
            CoordinatorRecord record = (CoordinatorRecord) each;
            log.add(new byte[][] {SERDE.serializeKey(record), SERDE.serializeValue(record)});
            if (replay) {
                apply(record);
            } else {
                written++;
            }
        }
        snapshots.idempotentCreateSnapshot(written);
    }

    private void apply(CoordinatorRecord record) {
        coordinator.replay(written, -1L, (short) -1, record);
        written++;
    }

    /** What was written is durable. */
    void commit() {
        snapshots.idempotentCreateSnapshot(written);
        snapshots.deleteSnapshotsUpTo(written);
    }

    /** The cluster's topics are now these: {name: [id, partitions]}. */
    void topics(JsonNode topics) {
        MetadataDelta delta = new MetadataDelta.Builder().setImage(image).build();
        for (Object each : image.topics().topicsById().values()) {
            TopicImage topic = (TopicImage) each;
            JsonNode named = Json.in(topics, topic.name());
            if (named == null || !Uuid.fromString(Json.at(named, 0).asText()).equals(topic.id())) {
                delta.replay(new RemoveTopicRecord().setTopicId(topic.id()));
            }
        }
        for (Iterator names = topics.fieldNames(); names.hasNext();) {
            String name = (String) names.next();
            grow(delta, name, Json.in(topics, name));
        }
        image = delta.apply(
            new MetadataProvenance(image.provenance().lastContainedOffset() + 1, 0, 0L, true));
        if (coordinator != null) {
            coordinator.onMetadataUpdate(
                new KRaftCoordinatorMetadataDelta(delta), new KRaftCoordinatorMetadataImage(image));
        }
    }

    private void grow(MetadataDelta delta, String name, JsonNode topic) {
        Uuid id = Uuid.fromString(Json.at(topic, 0).asText());
        TopicImage known = image.topics().getTopic(id);
        if (known == null) {
            delta.replay(new TopicRecord().setTopicId(id).setName(name));
        }
        for (int i = known == null ? 0 : known.partitions().size(); i < Json.at(topic, 1).asInt(); i++) {
            List replicas = new ArrayList();
            replicas.add(Integer.valueOf(i % BROKERS));
            replicas.add(Integer.valueOf((i + 1) % BROKERS));
            delta.replay(new PartitionRecord().setTopicId(id).setPartitionId(i)
                .setReplicas(replicas));
        }
    }
}

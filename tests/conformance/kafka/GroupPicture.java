package org.apache.kafka.coordinator.group;

import java.lang.reflect.Field;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.JoinGroupRequestData;
import org.apache.kafka.coordinator.group.classic.ClassicGroup;
import org.apache.kafka.coordinator.group.classic.ClassicGroupMember;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.consumer.ConsumerGroup;
import org.apache.kafka.coordinator.group.modern.consumer.ConsumerGroupMember;

/** What a group looks like inside, as JSON; bytes are hex. */
public class GroupPicture {
    private static final JsonNodeFactory JSON = JsonNodeFactory.instance;
    private static final char[] HEX = "0123456789abcdef".toCharArray();
    private static final Field PENDING_JOIN = field("pendingJoinMembers");

    static ObjectNode of(Group group) throws Exception {
        if (group instanceof ClassicGroup) {
            return classic((ClassicGroup) group);
        }
        if (group instanceof ConsumerGroup) {
            return consumer((ConsumerGroup) group);
        }
        return JSON.objectNode().put("type", group.type().toString());
    }

    private static ObjectNode classic(ClassicGroup group) throws Exception {
        ObjectNode node = JSON.objectNode();
        node.put("type", "classic");
        node.put("state", group.currentState().toString());
        node.put("previous_state", group.previousState().toString());
        node.put("since", group.currentStateTimestampOrDefault());
        node.put("generation", group.generationId());
        node.put("protocol_type", (String) group.protocolType().orElse(null));
        node.put("protocol", (String) group.protocolName().orElse(null));
        node.put("leader", group.leaderOrNull());
        node.put("new_member_added", group.newMemberAdded());
        node.put("awaiting_join", group.numAwaitingJoinResponse());
        node.set("pending_join", sorted((Set) PENDING_JOIN.get(group)));
        node.set("pending_sync", sorted(group.allPendingSyncMembers()));
        ArrayNode members = node.putArray("members");
        for (Object each : group.allMembers()) {
            ClassicGroupMember member = (ClassicGroupMember) each;
            ObjectNode one = members.addObject();
            one.put("id", member.memberId());
            one.put("instance", (String) member.groupInstanceId().orElse(null));
            one.put("client", member.clientId());
            one.put("host", member.clientHost());
            one.put("rebalance_timeout", member.rebalanceTimeoutMs());
            one.put("session_timeout", member.sessionTimeoutMs());
            ArrayNode protocols = one.putArray("protocols");
            for (Object protocol : member.supportedProtocols()) {
                JoinGroupRequestData.JoinGroupRequestProtocol named =
                    (JoinGroupRequestData.JoinGroupRequestProtocol) protocol;
                protocols.addArray().add(named.name()).add(hex(named.metadata()));
            }
            one.put("assignment", hex(member.assignment()));
            one.put("awaits_join", member.isAwaitingJoin());
            one.put("awaits_sync", member.isAwaitingSync());
            one.put("new", member.isNew());
        }
        return node;
    }

    private static ObjectNode consumer(ConsumerGroup group) {
        ObjectNode node = JSON.objectNode();
        node.put("type", "consumer");
        node.put("state", group.state().toString());
        node.put("epoch", group.groupEpoch());
        node.put("assignment_epoch", group.assignmentEpoch());
        node.put("assignment_timestamp", group.assignmentTimestamp());
        node.set("topics", sorted(group.subscribedTopicNames().keySet()));
        ArrayNode members = node.putArray("members");
        for (Object each : new TreeMap(group.members()).values()) {
            ConsumerGroupMember member = (ConsumerGroupMember) each;
            ObjectNode one = members.addObject();
            one.put("id", member.memberId());
            one.put("instance", member.instanceId());
            one.put("rack", member.rackId());
            one.put("client", member.clientId());
            one.put("host", member.clientHost());
            one.put("epoch", member.memberEpoch());
            one.put("previous_epoch", member.previousMemberEpoch());
            one.put("state", member.state().name());
            one.put("rebalance_timeout", member.rebalanceTimeoutMs());
            one.set("topics", sorted(member.subscribedTopicNames()));
            one.put("assignor", (String) member.serverAssignorName().orElse(null));
            one.put("classic", member.useClassicProtocol());
            one.set("assigned", epochs(member.assignedPartitions()));
            one.set("pending_revocation", epochs(member.partitionsPendingRevocation()));
            one.set("target", partitions(group.targetAssignment(member.memberId())));
        }
        return node;
    }

    /** {topic id: {partition: epoch}}. */
    private static ObjectNode epochs(Map topics) {
        ObjectNode node = JSON.objectNode();
        for (Object each : byName(topics).entrySet()) {
            Map.Entry topic = (Map.Entry) each;
            ObjectNode one = node.putObject((String) topic.getKey());
            for (Object inner : new TreeMap((Map) topic.getValue()).entrySet()) {
                Map.Entry partition = (Map.Entry) inner;
                one.put(partition.getKey().toString(), (Integer) partition.getValue());
            }
        }
        return node;
    }

    /** {topic id: [partition]}. */
    private static ObjectNode partitions(Assignment assignment) {
        ObjectNode node = JSON.objectNode();
        for (Object each : byName(assignment.partitions()).entrySet()) {
            Map.Entry topic = (Map.Entry) each;
            ArrayNode one = node.putArray((String) topic.getKey());
            for (Object partition : new TreeSet((Set) topic.getValue())) {
                one.add((Integer) partition);
            }
        }
        return node;
    }

    private static TreeMap byName(Map topics) {
        TreeMap named = new TreeMap();
        for (Object each : topics.entrySet()) {
            Map.Entry topic = (Map.Entry) each;
            named.put(((Uuid) topic.getKey()).toString(), topic.getValue());
        }
        return named;
    }

    private static ArrayNode sorted(Set texts) {
        ArrayNode node = JSON.arrayNode();
        for (Object each : new TreeSet(texts)) {
            node.add((String) each);
        }
        return node;
    }

    static String hex(byte[] bytes) {
        if (bytes == null) {
            return null;
        }
        char[] text = new char[2 * bytes.length];
        for (int i = 0; i < bytes.length; i++) {
            text[2 * i] = HEX[(bytes[i] >> 4) & 15];
            text[2 * i + 1] = HEX[bytes[i] & 15];
        }
        return new String(text);
    }

    private static Field field(String name) {
        try {
            Field field = ClassicGroup.class.getDeclaredField(name);
            field.setAccessible(true);
            return field;
        } catch (NoSuchFieldException error) {
            throw new IllegalStateException(error);
        }
    }
}

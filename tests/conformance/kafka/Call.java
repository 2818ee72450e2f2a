package org.apache.kafka.coordinator.group;

import java.net.InetAddress;
import java.util.concurrent.CompletableFuture;
import java.util.function.BiFunction;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;

import org.slf4j.LoggerFactory;

import org.apache.kafka.common.message.ConsumerGroupHeartbeatRequestDataJsonConverter;
import org.apache.kafka.common.message.ConsumerGroupHeartbeatResponseData;
import org.apache.kafka.common.message.ConsumerGroupHeartbeatResponseDataJsonConverter;
import org.apache.kafka.common.message.HeartbeatRequestDataJsonConverter;
import org.apache.kafka.common.message.HeartbeatResponseData;
import org.apache.kafka.common.message.HeartbeatResponseDataJsonConverter;
import org.apache.kafka.common.message.JoinGroupRequestDataJsonConverter;
import org.apache.kafka.common.message.JoinGroupResponseData;
import org.apache.kafka.common.message.JoinGroupResponseDataJsonConverter;
import org.apache.kafka.common.message.LeaveGroupRequestDataJsonConverter;
import org.apache.kafka.common.message.LeaveGroupResponseData;
import org.apache.kafka.common.message.LeaveGroupResponseDataJsonConverter;
import org.apache.kafka.common.message.OffsetCommitRequestDataJsonConverter;
import org.apache.kafka.common.message.OffsetCommitResponseData;
import org.apache.kafka.common.message.OffsetCommitResponseDataJsonConverter;
import org.apache.kafka.common.message.SyncGroupRequestDataJsonConverter;
import org.apache.kafka.common.message.SyncGroupResponseData;
import org.apache.kafka.common.message.SyncGroupResponseDataJsonConverter;
import org.apache.kafka.common.network.ClientInformation;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.requests.RequestContext;
import org.apache.kafka.common.requests.RequestHeader;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.coordinator.common.runtime.CoordinatorOperationExceptionHelper;
import org.apache.kafka.coordinator.common.runtime.CoordinatorResult;

/**
 * One request to the coordinator, from Kafka's own JSON of it to Kafka's own JSON of the answer.
 * Requests and answers have the newest version's fields, whatever version the client speaks.
 */
public class Call {
    final String api;
    final CompletableFuture future;
    private final Shard shard;
    private final JsonNode body;
    private final RequestContext context;
    private final short newest;
    private final int version;

    Call(Shard shard, String api, JsonNode event, CompletableFuture future) throws Exception {
        this.shard = shard;
        this.api = api;
        this.future = future;
        this.body = Json.in(event, "body");
        ApiKeys key = ApiKeys.valueOf(underscored(api));
        // From version 10 on topics have ids for names there.
        short last = key.latestVersion();
        this.newest = api.startsWith("Offset") ? (short) Math.min(last, 9) : last;
        this.version = (int) Json.number(event, "version", newest);
        this.context = new RequestContext(
            new RequestHeader(key, (short) version, Json.text(event, "client", "client"), 0),
            "1", InetAddress.getByName(Json.text(event, "host", "127.0.0.1")),
            KafkaPrincipal.ANONYMOUS, ListenerName.forSecurityProtocol(SecurityProtocol.PLAINTEXT),
            SecurityProtocol.PLAINTEXT, ClientInformation.EMPTY, false);
    }

    /** What the coordinator decided; null where it only reads, and has answered. */
    CoordinatorResult run() {
        GroupCoordinatorShard to = shard.coordinator;
        if (api.equals("JoinGroup")) {
            return to.classicGroupJoin(
                context, JoinGroupRequestDataJsonConverter.read(body, newest), future);
        } else if (api.equals("SyncGroup")) {
            return to.classicGroupSync(
                context, SyncGroupRequestDataJsonConverter.read(body, newest), future);
        } else if (api.equals("Heartbeat")) {
            return to.classicGroupHeartbeat(
                context, HeartbeatRequestDataJsonConverter.read(body, newest));
        } else if (api.equals("LeaveGroup")) {
            return to.classicGroupLeave(
                context, LeaveGroupRequestDataJsonConverter.read(body, newest));
        } else if (api.equals("ConsumerGroupHeartbeat")) {
            return to.consumerGroupHeartbeat(
                context, ConsumerGroupHeartbeatRequestDataJsonConverter.read(body, newest));
        } else if (api.equals("OffsetCommit")) {
            return to.commitOffset(
                context, OffsetCommitRequestDataJsonConverter.read(body, newest));
        }
        throw new IllegalArgumentException("no request is called " + api);
    }

    /** What was decided is durable: the answer goes out, where it does not wait for others. */
    void done(Object response) {
        if (response != null) {
            future.complete(response);
        }
    }

    /** As the coordinator's service answers for one that threw. */
    void failed(Throwable error) {
        if (!future.isDone()) {
            final Call mine = this;
            future.complete(CoordinatorOperationExceptionHelper.handleOperationException(
                api, body.toString(), error,
                new BiFunction() {
                    public Object apply(Object found, Object message) {
                        return mine.refusal((Errors) found);
                    }
                },
                LoggerFactory.getLogger(Call.class)));
        }
    }

    private Object refusal(Errors error) {
        short code = error.code();
        if (api.equals("JoinGroup")) {
            return new JoinGroupResponseData().setErrorCode(code);
        } else if (api.equals("SyncGroup")) {
            return new SyncGroupResponseData().setErrorCode(code);
        } else if (api.equals("Heartbeat")) {
            return new HeartbeatResponseData().setErrorCode(code);
        } else if (api.equals("LeaveGroup")) {
            return leaveRefusal(error);
        } else if (api.equals("ConsumerGroupHeartbeat")) {
            return new ConsumerGroupHeartbeatResponseData().setErrorCode(code);
        }
        return JsonNodeFactory.instance.objectNode().put("errorCode", code);
    }

    private Object leaveRefusal(Errors error) {
        LeaveGroupResponseData answer = new LeaveGroupResponseData();
        if (error != Errors.UNKNOWN_MEMBER_ID) {
            return answer.setErrorCode(error.code());
        }
        for (Object each : LeaveGroupRequestDataJsonConverter.read(body, newest).members()) {
            org.apache.kafka.common.message.LeaveGroupRequestData.MemberIdentity member =
                (org.apache.kafka.common.message.LeaveGroupRequestData.MemberIdentity) each;
            answer.members().add(new LeaveGroupResponseData.MemberResponse()
                .setMemberId(member.memberId()).setGroupInstanceId(member.groupInstanceId())
                .setErrorCode(error.code()));
        }
        return answer;
    }

    /** Kafka's own JSON of the answer. */
    JsonNode answer() throws Exception {
        Object found = future.get();
        if (found instanceof JsonNode) {
            return (JsonNode) found;
        } else if (found instanceof JoinGroupResponseData) {
            return JoinGroupResponseDataJsonConverter.write((JoinGroupResponseData) found, newest);
        } else if (found instanceof SyncGroupResponseData) {
            return SyncGroupResponseDataJsonConverter.write((SyncGroupResponseData) found, newest);
        } else if (found instanceof HeartbeatResponseData) {
            return HeartbeatResponseDataJsonConverter.write((HeartbeatResponseData) found, newest);
        } else if (found instanceof LeaveGroupResponseData) {
            return LeaveGroupResponseDataJsonConverter.write(
                (LeaveGroupResponseData) found, newest);
        } else if (found instanceof ConsumerGroupHeartbeatResponseData) {
            return ConsumerGroupHeartbeatResponseDataJsonConverter.write(
                (ConsumerGroupHeartbeatResponseData) found, newest);
        }
        return OffsetCommitResponseDataJsonConverter.write((OffsetCommitResponseData) found, newest);
    }

    private static String underscored(String name) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < name.length(); i++) {
            if (i > 0 && Character.isUpperCase(name.charAt(i))) {
                text.append('_');
            }
            text.append(Character.toUpperCase(name.charAt(i)));
        }
        return text.toString();
    }
}

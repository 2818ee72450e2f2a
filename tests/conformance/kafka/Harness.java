package org.apache.kafka.coordinator.group;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.coordinator.common.runtime.CoordinatorResult;

/**
 * Plays scenarios to Kafka's own group coordinator: a JSON line each on standard input, and for
 * each a line on standard output with what came of every event. `kafka_coordinator.py` has the
 * words of both.
 */
public class Harness {
    private static final JsonNodeFactory JSON = JsonNodeFactory.instance;
    private static final Set GAUGES = new HashSet();
    private static final int LIMIT = 100000;

    private final VirtualTime time;
    private final Shard shard;
    /** Of every answer that is awaited: the event's number, in that order. */
    private final LinkedHashMap awaited = new LinkedHashMap();
    /** Results whose records are in the log and not yet durable. */
    private final List held = new ArrayList();
    private final Map pictures = new HashMap();
    private String timers = "";
    private ObjectNode step;

    Harness(JsonNode scenario) throws Exception {
        time = new VirtualTime(Json.number(scenario, "start", 0L));
        Map properties = new HashMap();
        JsonNode config = Json.in(scenario, "config");
        for (Iterator names = config.fieldNames(); names.hasNext();) {
            String name = (String) names.next();
            properties.put(name, Json.in(config, name).asText());
        }
        FixedRandom.seed(Json.number(scenario, "seed", 0L));
        shard = new Shard(time, properties);
        if (Json.in(scenario, "topics") != null) {
            shard.topics(Json.in(scenario, "topics"));
        }
        shard.load();
    }

    public static void main(String[] arguments) throws Exception {
        GAUGES.add("group-size-counter");
        GAUGES.add("expire-group-metadata");
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        System.setOut(System.err);
        FixedRandom.install();
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader lines = new BufferedReader(
            new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            out.println(mapper.writeValueAsString(play(mapper.readTree(line))));
            out.flush();
        }
    }

    private static JsonNode play(JsonNode scenario) {
        ArrayNode steps = JSON.arrayNode();
        try {
            Harness harness = new Harness(scenario);
            int number = 0;
            for (Object event : Json.in(scenario, "events")) {
                steps.add(harness.step(number++, (JsonNode) event));
            }
        } catch (Throwable error) {
            ObjectNode node = JSON.objectNode();
            java.io.StringWriter text = new java.io.StringWriter();
            error.printStackTrace(new java.io.PrintWriter(text));
            node.put("broken", text.toString());
            steps.add(node);
        }
        return steps;
    }

    private ObjectNode step(int number, JsonNode event) throws Exception {
        step = JSON.objectNode();
        int written = shard.log.size();
        String op = Json.text(event, "op", "");
        String append = Json.text(event, "append", "ok");
        if (op.equals("advance")) {
            advance(time.now + Json.number(event, "ms", 0L), append);
        } else if (op.equals("append")) {
            if (!held.isEmpty()) {
                settle((Object[]) held.remove(0), Json.text(event, "error", ""));
            }
        } else if (op.equals("topics")) {
            shard.topics(Json.in(event, "topics"));
        } else if (op.equals("failover")) {
            failover(Json.yes(event, "kept"));
            written = Math.min(written, shard.log.size());
        } else {
            request(number, op, event, append);
        }
        step.put("at", time.now);
        answers();
        records(written);
        pictures();
        timers();
        return step;
    }

    private void request(int number, String op, JsonNode event, String append) throws Exception {
        CompletableFuture future = new CompletableFuture();
        Call call = new Call(shard, op, event, future);
        awaited.put(Integer.valueOf(number), call);
        CoordinatorResult result = null;
        try {
            result = call.run();
        } catch (Throwable error) {
            unexpected(error);
            call.failed(error);
            return;
        }
        if (result != null) {
            finish(new Object[] {result, call}, append);
        }
    }

    /** Time goes on to a moment; each timer goes off at its own. */
    private void advance(long until, String append) {
        int count = 0;
        for (Pending due = shard.timer.take(until); due != null; due = shard.timer.take(until)) {
            if (++count > LIMIT) {
                throw new IllegalStateException("timers go off without an end");
            }
            time.now = Math.max(time.now, due.deadline);
            if (!GAUGES.contains(due.key)) {
                Json.list(step, "fired").addArray().add(due.key).add(time.now);
            }
            try {
                CoordinatorResult result = due.operation.generateRecords();
                finish(new Object[] {result, null}, append);
            } catch (Throwable error) {
                unexpected(error);
            }
        }
        time.now = until;
    }

    /** Another broker loads the log; `kept`: what was not durable is in it all the same. */
    private void failover(boolean kept) {
        shard.unload();
        int durable = shard.log.size();
        while (!held.isEmpty()) {
            Object[] each = (Object[]) held.remove(0);
            if (!kept) {
                durable = Math.min(durable, ((Integer) each[2]).intValue());
            }
            settle(each, "NOT_COORDINATOR");
        }
        while (shard.log.size() > durable) {
            shard.log.remove(shard.log.size() - 1);
        }
        shard.coordinator.onUnloaded();
        shard.unload();
        shard.load();
    }

    /** Writes what was decided, and answers: at once, later, or not at all where that fails. */
    private void finish(Object[] decided, String append) {
        CoordinatorResult result = (CoordinatorResult) decided[0];
        Object[] pending = new Object[] {result, decided[1], Integer.valueOf(shard.log.size())};
        if (result.records().isEmpty()) {
            settle(pending, "");
        } else if (append.equals("ok")) {
            shard.write(result.records(), result.replayRecords());
            settle(pending, "");
        } else if (append.equals("later")) {
            shard.write(result.records(), result.replayRecords());
            held.add(pending);
        } else {
            settle(pending, append);
        }
    }

    private void settle(Object[] pending, String error) {
        CoordinatorResult result = (CoordinatorResult) pending[0];
        Call call = (Call) pending[1];
        CompletableFuture append = result.appendFuture();
        if (error.isEmpty()) {
            if (held.isEmpty()) {
                shard.commit();
            }
            if (append != null) {
                append.complete(null);
            }
            if (call != null) {
                call.done(result.response());
            }
        } else {
            Throwable failure = Errors.valueOf(error).exception();
            if (append != null) {
                append.completeExceptionally(failure);
            }
            if (call != null) {
                call.failed(failure);
            }
        }
    }

    private void unexpected(Throwable error) {
        if (!(error instanceof org.apache.kafka.common.errors.ApiException)) {
            step.put("error", error.getClass().getSimpleName());
        }
    }

    /** Answers given in this step, by the number of the event that asked. */
    private void answers() throws Exception {
        for (Iterator calls = awaited.entrySet().iterator(); calls.hasNext();) {
            Map.Entry entry = (Map.Entry) calls.next();
            Call call = (Call) entry.getValue();
            if (call.future.isDone()) {
                Json.list(step, "answers").addArray()
                    .add((Integer) entry.getKey()).add(call.api).add(call.answer());
                calls.remove();
            }
        }
    }

    private void records(int from) {
        for (int i = from; i < shard.log.size(); i++) {
            byte[][] record = (byte[][]) shard.log.get(i);
            Json.list(step, "records").addArray()
                .add(GroupPicture.hex(record[0])).add(GroupPicture.hex(record[1]));
        }
    }

    /** Pictures of the groups that look different now; null of one that is gone. */
    private void pictures() throws Exception {
        Set now = new TreeSet(shard.groups.groupIds());
        for (Object id : now) {
            ObjectNode picture = GroupPicture.of(shard.groups.group((String) id));
            if (!picture.equals(pictures.get(id))) {
                pictures.put(id, picture);
                Json.object(step, "groups").set((String) id, picture);
            }
        }
        for (Iterator known = pictures.keySet().iterator(); known.hasNext();) {
            String id = (String) known.next();
            if (!now.contains(id)) {
                known.remove();
                Json.object(step, "groups").putNull(id);
            }
        }
    }

    /** {key: deadline} of every timer that is set, where that has changed. */
    private void timers() {
        ObjectNode all = JSON.objectNode();
        for (Object each : shard.timer.all()) {
            Pending timer = (Pending) each;
            if (!GAUGES.contains(timer.key)) {
                all.put(timer.key, timer.deadline);
            }
        }
        String text = all.toString();
        if (!text.equals(timers)) {
            timers = text;
            step.set("timers", all);
        }
    }
}

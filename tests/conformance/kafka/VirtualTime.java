package org.apache.kafka.coordinator.group;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.common.runtime.CoordinatorExecutor;
import org.apache.kafka.coordinator.common.runtime.CoordinatorTimer;

/**
 * Time that stands until it is told to go on, with the coordinator's timers.
 *
 * Timers that are due at one moment go off in the order in which they were set; Kafka promises
 * no order there, and its own mock has that of a heap. Cost: a timer is looked for one by one.
 */
public class VirtualTime implements Time {
    public long now;

    public VirtualTime(long now) {
        this.now = now;
    }

    public long milliseconds() {
        return now;
    }

    public long nanoseconds() {
        return now * 1000000L;
    }

    public void sleep(long milliseconds) {
        throw new IllegalStateException("a coordinator does not sleep");
    }

    public void waitObject(Object object, Supplier condition, long deadline) {
        throw new IllegalStateException("a coordinator does not wait");
    }
}

/** A timer that was set. */
class Pending {
    final String key;
    final long deadline;
    final CoordinatorTimer.TimeoutOperation operation;

    Pending(String key, long deadline, CoordinatorTimer.TimeoutOperation operation) {
        this.key = key;
        this.deadline = deadline;
        this.operation = operation;
    }
}

/** One timer per key; setting it again replaces it. In the order in which they were set. */
class VirtualTimer implements CoordinatorTimer {
    private final VirtualTime time;
    private final LinkedHashMap pending = new LinkedHashMap();

    VirtualTimer(VirtualTime time) {
        this.time = time;
    }

    public void schedule(
        String key, long delay, TimeUnit unit, boolean retry, long backoff,
        CoordinatorTimer.TimeoutOperation operation
    ) {
        pending.remove(key);
        pending.put(key, new Pending(key, time.now + unit.toMillis(delay), operation));
    }

    public void schedule(
        String key, long delay, TimeUnit unit, boolean retry,
        CoordinatorTimer.TimeoutOperation operation
    ) {
        schedule(key, delay, unit, retry, 500L, operation);
    }

    public void scheduleIfAbsent(
        String key, long delay, TimeUnit unit, boolean retry,
        CoordinatorTimer.TimeoutOperation operation
    ) {
        if (!pending.containsKey(key)) {
            schedule(key, delay, unit, retry, 500L, operation);
        }
    }

    public void cancel(String key) {
        pending.remove(key);
    }

    public boolean isScheduled(String key) {
        return pending.containsKey(key);
    }

    void cancelAll() {
        pending.clear();
    }

    /** Takes the next timer that is due by then; null where there is none. */
    Pending take(long until) {
        Pending next = null;
        for (Object each : pending.values()) {
            Pending timer = (Pending) each;
            if (timer.deadline <= until && (next == null || timer.deadline < next.deadline)) {
                next = timer;
            }
        }
        if (next != null) {
            pending.remove(next.key);
        }
        return next;
    }

    /** Those that were set, in that order. */
    List all() {
        return new ArrayList(pending.values());
    }
}

/** Has no tasks: Kafka's coordinator schedules them for regular expressions only. */
class VirtualExecutor implements CoordinatorExecutor {
    public boolean schedule(
        String key, CoordinatorExecutor.TaskRunnable task,
        CoordinatorExecutor.TaskOperation operation
    ) {
        throw new IllegalStateException("no member subscribes by an expression");
    }

    public boolean isScheduled(String key) {
        return false;
    }

    public void cancel(String key) {
    }
}

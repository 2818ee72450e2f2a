package org.apache.kafka.coordinator.group;

import java.security.Provider;
import java.security.SecureRandomSpi;
import java.security.Security;

/**
 * The random numbers of a scenario: two runs of one seed make the same member ids.
 *
 * Member ids decide the order of Java's hash maps, thus who leads a group and in which order
 * members stand in a record: only equal ids make equal bytes. It is SplitMix64, 8 bytes a step.
 */
public class FixedRandom extends SecureRandomSpi {
    private static long state = 0L;

    static void install() {
        Security.insertProviderAt(new FixedProvider(), 1);
    }

    static void seed(long seed) {
        state = seed;
    }

    protected void engineSetSeed(byte[] seed) {
    }

    protected void engineNextBytes(byte[] bytes) {
        for (int at = 0; at < bytes.length; at += 8) {
            state += 0x9E3779B97F4A7C15L;
            long z = state;
            z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
            z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
            z = z ^ (z >>> 31);
            for (int i = 0; i < 8 && at + i < bytes.length; i++) {
                bytes[at + i] = (byte) (z >>> (56 - 8 * i));
            }
        }
    }

    protected byte[] engineGenerateSeed(int size) {
        return new byte[size];
    }
}

class FixedProvider extends Provider {
    FixedProvider() {
        super("Fixed", "1.0", "random numbers of a scenario");
        put("SecureRandom.Fixed", "org.apache.kafka.coordinator.group.FixedRandom");
    }
}

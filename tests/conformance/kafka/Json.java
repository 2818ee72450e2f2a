package org.apache.kafka.coordinator.group;

import com.fasterxml.jackson.core.TreeNode;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

/** Fields of JSON, with the casts that Janino asks for where an override narrows what it returns. */
public class Json {
    /** A field; null where it is not there. */
    static JsonNode in(JsonNode node, String name) {
        return (JsonNode) ((TreeNode) node).get(name);
    }

    static JsonNode at(JsonNode node, int index) {
        return (JsonNode) ((TreeNode) node).get(index);
    }

    static String text(JsonNode node, String name, String otherwise) {
        JsonNode found = in(node, name);
        return found == null || found.isNull() ? otherwise : found.asText();
    }

    static long number(JsonNode node, String name, long otherwise) {
        JsonNode found = in(node, name);
        return found == null ? otherwise : found.asLong();
    }

    static boolean yes(JsonNode node, String name) {
        JsonNode found = in(node, name);
        return found != null && found.asBoolean();
    }

    /** The array of that name, made where it is not there. */
    static ArrayNode list(ObjectNode node, String name) {
        JsonNode found = in(node, name);
        return found == null ? node.putArray(name) : (ArrayNode) found;
    }

    /** The object of that name, made where it is not there. */
    static ObjectNode object(ObjectNode node, String name) {
        JsonNode found = in(node, name);
        return found == null ? node.putObject(name) : (ObjectNode) found;
    }
}

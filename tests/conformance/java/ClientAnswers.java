import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;

import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor;
import org.apache.kafka.clients.producer.RoundRobinPartitioner;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.ByteBufferOutputStream;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Utils;

/**
 * What Kafka's client does with its inputs, without a broker: a line of JSON on stdin is a question, {@code {"ask": ...}}
 * and its inputs, and the next line on stdout is the answer. Bytes are base64.
 */
public final class ClientAnswers {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int DRAWS = 2_000;

    private ClientAnswers() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode question = JSON.readTree(line);
            Object answer = switch (question.get("ask").asText()) {
                case "keys" -> keys(question);
                case "turns" -> turns(question);
                case "choices" -> choices(question);
                case "batch" -> batch(question);
                case "read" -> read(question);
                case "assign" -> assign(question);
                default -> throw new IllegalArgumentException(line);
            };
            out.println(JSON.writeValueAsString(answer));
        }
    }

    /** Of each key its hash, and its partition for each number of partitions; of null nothing. */
    private static List<List<Integer>> keys(JsonNode question) throws Exception {
        List<List<Integer>> found = new ArrayList<>();
        for (JsonNode each : question.get("keys")) {
            byte[] key = bytes(each);
            List<Integer> of = new ArrayList<>();
            if (key != null) {
                of.add(Utils.murmur2(key));
                question.get("counts").forEach(count -> of.add(BuiltInPartitioner.partitionForKey(key, count.asInt())));
            }
            found.add(of);
        }
        return found;
    }

    /** Where RoundRobinPartitioner puts one record after the other. */
    private static List<Integer> turns(JsonNode question) {
        List<Integer> found = new ArrayList<>();
        try (RoundRobinPartitioner partitioner = new RoundRobinPartitioner()) {
            for (JsonNode led : question.get("led")) {
                found.add(partitioner.partition("t", null, null, null, null, ledCluster(led)));
            }
        }
        return found;
    }

    /** The partitions that a record without a key may go to, by chance. */
    private static Set<Integer> choices(JsonNode question) throws Exception {
        Cluster cluster = ledCluster(question.get("led"));
        Method peek = BuiltInPartitioner.class.getDeclaredMethod("peekCurrentPartitionInfo", Cluster.class);
        peek.setAccessible(true);
        Set<Integer> found = new TreeSet<>();
        for (int left = DRAWS; left > 0; left--) {
            Object chosen = peek.invoke(new BuiltInPartitioner(new LogContext(), "t", 1), cluster);
            Method partition = chosen.getClass().getDeclaredMethod("partition");
            partition.setAccessible(true);
            found.add((Integer) partition.invoke(chosen));
        }
        return found;
    }

    /** A topic whose partitions have a leader, or have none. */
    private static Cluster ledCluster(JsonNode led) {
        Node node = new Node(1, "h", 1);
        List<PartitionInfo> partitions = new ArrayList<>();
        for (JsonNode each : led) {
            partitions.add(new PartitionInfo(
                "t", partitions.size(), each.asBoolean() ? node : null, new Node[0], new Node[0]));
        }
        return new Cluster("c", List.of(node), partitions, Set.of(), Set.of());
    }

    /** The bytes of a batch as the producer's accumulator and sender make it. */
    private static byte[] batch(JsonNode question) throws Exception {
        Compression compression = Compression.of(CompressionType.forName(question.get("codec").asText())).build();
        ByteBufferOutputStream bytes = new ByteBufferOutputStream(1 << 10);
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(
            bytes, (byte) 2, compression, TimestampType.CREATE_TIME, 0, -1, -1, (short) -1, -1, false, false, -1, 1 << 30);
        for (JsonNode record : question.get("records")) {
            List<Header> headers = new ArrayList<>();
            for (JsonNode header : record.get(3)) {
                headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
            }
            builder.append(
                record.get(2).asLong(), bytes(record.get(0)), bytes(record.get(1)), headers.toArray(new Header[0]));
        }
        JsonNode producer = question.get("producer");
        builder.setProducerState(
            producer.get(0).asLong(), (short) producer.get(1).asInt(), producer.get(2).asInt(), false);
        ByteBuffer built = builder.build().buffer();
        byte[] found = new byte[built.remaining()];
        built.get(found);
        return found;
    }

    /** The fields of a batch and its records, checked as the consumer's fetcher does. */
    private static Map<String, Object> read(JsonNode question) throws Exception {
        List<MutableRecordBatch> batches = new ArrayList<>();
        MemoryRecords.readableRecords(ByteBuffer.wrap(question.get("batch").binaryValue())).batches().forEach(batches::add);
        if (batches.size() != 1) {
            throw new IllegalStateException(batches.size() + " batches");
        }
        MutableRecordBatch batch = batches.get(0);
        batch.ensureValid();
        List<List<Object>> records = new ArrayList<>();
        for (Record record : batch) {
            record.ensureValid();
            List<List<Object>> headers = new ArrayList<>();
            for (Header header : record.headers()) {
                headers.add(list(header.key(), header.value()));
            }
            records.add(list(
                record.hasKey() ? Utils.toArray(record.key()) : null,
                record.hasValue() ? Utils.toArray(record.value()) : null,
                record.timestamp(), headers, record.offset()));
        }
        return Map.of(
            "codec", batch.compressionType().name,
            "producer", List.of(batch.producerId(), batch.producerEpoch(), batch.baseSequence()),
            "last", List.of(batch.lastOffset(), batch.lastSequence(), batch.maxTimestamp()),
            "records", records);
    }

    /** Who gets which partitions of each topic; of the last round where members give up some before others get them. */
    private static ObjectNode assign(JsonNode question) {
        AbstractPartitionAssignor assignor = switch (question.get("assignor").asText()) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            default -> new CooperativeStickyAssignor();
        };
        Cluster cluster = cluster(question.get("topics"));
        Map<String, List<TopicPartition>> owned = new HashMap<>();
        Map<String, Integer> generations = new HashMap<>();
        question.get("members").fields().forEachRemaining(each -> {
            owned.put(each.getKey(), partitions(each.getValue().get("owned")));
            generations.put(each.getKey(), each.getValue().get("generation").asInt());
        });
        while (true) {
            Map<String, Subscription> subscriptions = new HashMap<>();
            question.get("members").fields().forEachRemaining(each -> {
                String id = each.getKey();
                subscriptions.put(id, subscription(assignor, each.getValue(), owned.get(id), generations.get(id)));
            });
            ObjectNode round = JSON.createObjectNode();
            boolean changed = false;
            int next = generations.values().stream().max(Integer::compare).get() + 1;
            for (Map.Entry<String, Assignment> each :
                    assignor.assign(cluster, new GroupSubscription(subscriptions)).groupAssignment().entrySet()) {
                List<TopicPartition> now = each.getValue().partitions();
                changed |= !Set.copyOf(now).equals(Set.copyOf(owned.put(each.getKey(), now)));
                generations.put(each.getKey(), next);
                ObjectNode mine = round.putObject(each.getKey());
                now.forEach(partition -> mine.withArray(partition.topic()).add(partition.partition()));
            }
            if (!(assignor instanceof CooperativeStickyAssignor) || !changed) {
                return round;
            }
        }
    }

    private static Subscription subscription(
            AbstractPartitionAssignor assignor, JsonNode member, List<TopicPartition> owned, int generation) {
        List<String> topics = new ArrayList<>();
        member.get("topics").forEach(topic -> topics.add(topic.asText()));
        ByteBuffer data = null;
        if (assignor instanceof StickyAssignor && generation >= 0) {
            StickyAssignor its = new StickyAssignor();
            its.onAssignment(new Assignment(owned), new ConsumerGroupMetadata("g", generation, "m", Optional.empty()));
            data = its.subscriptionUserData(Set.copyOf(topics));
        }
        Subscription found = new Subscription(
            topics, data, owned, generation, Optional.ofNullable(member.get("rack").textValue()));
        found.setGroupInstanceId(Optional.ofNullable(member.get("instance").textValue()));
        return found;
    }

    /** Of each topic's partitions the racks where they have replicas. */
    private static Cluster cluster(JsonNode topics) {
        Map<String, Node> nodes = new HashMap<>();
        List<PartitionInfo> partitions = new ArrayList<>();
        topics.fields().forEachRemaining(topic -> {
            int number = 0;
            for (JsonNode racks : topic.getValue()) {
                List<Node> replicas = new ArrayList<>();
                racks.forEach(rack -> replicas.add(
                    nodes.computeIfAbsent(rack.asText(), name -> new Node(nodes.size(), "h", 1, name))));
                Node[] all = replicas.toArray(new Node[0]);
                partitions.add(new PartitionInfo(topic.getKey(), number++, all.length == 0 ? null : all[0], all, all));
            }
        });
        return new Cluster("c", nodes.values(), partitions, Set.of(), Set.of());
    }

    private static List<TopicPartition> partitions(JsonNode all) {
        List<TopicPartition> found = new ArrayList<>();
        all.forEach(each -> found.add(new TopicPartition(each.get(0).asText(), each.get(1).asInt())));
        return found;
    }

    private static byte[] bytes(JsonNode value) throws Exception {
        return value.isNull() ? null : value.binaryValue();
    }

    /** As List.of, but may hold null. */
    private static List<Object> list(Object... all) {
        return new ArrayList<>(Arrays.asList(all));
    }
}

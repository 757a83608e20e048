import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;
import java.util.stream.Collectors;

import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.StringDeserializer;

/** A member of a consumer group; says and understands what {@code kit/foreign_member.py} does. */
public final class Member {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.US_ASCII);
    private static final TreeSet<Integer> OWNED = new TreeSet<>();
    private static volatile boolean ended;

    private Member() {}

    public static void main(String[] arguments) throws Exception {
        new Thread(Member::waitForEnd).start();
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments[0]);
        config.put("group.id", arguments[2]);
        boolean range = arguments[3].equals("range");
        config.put(
                "partition.assignment.strategy",
                (range ? RangeAssignor.class : CooperativeStickyAssignor.class).getName());
        if (!arguments[4].equals("-")) {
            config.put("group.instance.id", arguments[4]);
        }
        config.put("session.timeout.ms", arguments[5]);
        config.put("heartbeat.interval.ms", "300");
        config.put("enable.auto.commit", "false");
        config.put("auto.offset.reset", "earliest");
        config.put("key.deserializer", StringDeserializer.class.getName());
        config.put("value.deserializer", StringDeserializer.class.getName());
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(config)) {
            consumer.subscribe(List.of(arguments[1]), new Listener());
            while (!ended) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
                for (ConsumerRecord<String, String> record : records) {
                    OUT.println("read " + record.partition() + " " + record.offset());
                }
                if (!records.isEmpty()) {
                    commit(consumer);
                }
            }
        } catch (Exception error) {
            OUT.println("error " + error.toString().replace('\n', ' '));
        }
        OUT.println("left");
    }

    private static void commit(KafkaConsumer<String, String> consumer) {
        try {
            consumer.commitSync();
            OUT.println("committed");
        } catch (CommitFailedException | RebalanceInProgressException error) {
            OUT.println("refused " + error.toString().replace('\n', ' '));
        }
    }

    private static void waitForEnd() {
        try {
            System.in.readAllBytes();
        } catch (java.io.IOException error) {
            OUT.println("error " + error);
        }
        ended = true;
    }

    private static final class Listener implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            partitions.forEach(partition -> OWNED.add(partition.partition()));
            OUT.println("owns" + words(OWNED));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            TreeSet<Integer> given = new TreeSet<>();
            partitions.forEach(partition -> given.add(partition.partition()));
            given.retainAll(OWNED);
            OWNED.removeAll(given);
            OUT.println("gave" + words(given));
        }
    }

    private static String words(Collection<Integer> numbers) {
        return numbers.stream().map(number -> " " + number).collect(Collectors.joining());
    }
}

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Properties;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Writes each line of stdin to partition 0 of a topic, and reads that partition from offset 0 on meanwhile:
 * {@code Numbers SERVERS TOPIC RACK}, the rack empty for none.
 *
 * <p>Says {@code acked} for each record that is acknowledged, {@code read OFFSET VALUE} for each that is read,
 * {@code error TEXT} for whatever a client raises, and {@code written} at the end of stdin, once all is answered.
 * Reads on until it is killed.
 */
public final class Numbers {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.US_ASCII);

    private Numbers() {}

    public static void main(String[] arguments) throws Exception {
        Thread reader = new Thread(() -> read(arguments[0], arguments[1], arguments[2]));
        reader.start();
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments[0]);
        config.put("acks", "all");
        config.put("key.serializer", StringSerializer.class.getName());
        config.put("value.serializer", StringSerializer.class.getName());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(config)) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                producer.send(
                        new ProducerRecord<>(arguments[1], 0, null, line),
                        (where, error) -> OUT.println(error == null ? "acked" : "error " + text(error)));
            }
        } catch (Exception error) {
            OUT.println("error " + text(error));
        }
        reader.join();
    }

    private static void read(String servers, String topic, String rack) {
        Properties config = new Properties();
        config.put("bootstrap.servers", servers);
        config.put("client.rack", rack);
        config.put("auto.offset.reset", "none");
        config.put("enable.auto.commit", "false");
        config.put("key.deserializer", StringDeserializer.class.getName());
        config.put("value.deserializer", StringDeserializer.class.getName());
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(config)) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, 0);
            while (true) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                    OUT.println("read " + record.offset() + " " + record.value());
                }
            }
        } catch (Exception error) {
            OUT.println("error " + text(error));
        }
    }

    private static String text(Exception error) {
        return error.toString().replace('\n', ' ');
    }
}

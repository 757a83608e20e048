import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's Java client behind a line protocol, one process for many requests, so that the tests start one JVM.
 *
 * <p>Requests on stdin: {@code write SERVERS TOPIC PARTITION COMPRESSION IDEMPOTENT COUNT} and then COUNT rows, or
 * {@code read SERVERS TOPIC PARTITION COUNT}. Answers on stdout: {@code ok COUNT} and then COUNT rows (none for a
 * write), or {@code error TEXT}. A row is key, value, header, value, …, with spaces between, each {@code -} for
 * null and {@code =} and base64 else.
 */
public final class Rows {
    private static final Duration TIMEOUT = Duration.ofSeconds(30);

    private Rows() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.US_ASCII);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            try {
                if (words[0].equals("write")) {
                    List<String> rows = new ArrayList<>();
                    for (int left = Integer.parseInt(words[6]); left > 0; left--) {
                        rows.add(in.readLine());
                    }
                    write(words, rows);
                    out.println("ok 0");
                } else {
                    List<String> rows = read(words);
                    out.println("ok " + rows.size());
                    rows.forEach(out::println);
                }
            } catch (Exception error) {
                out.println("error " + error.toString().replace('\n', ' '));
            }
        }
    }

    private static void write(String[] words, List<String> rows) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", words[1]);
        config.put("compression.type", words[4]);
        config.put("enable.idempotence", words[5]);
        config.put("linger.ms", "50");
        config.put("max.request.size", "2000000");
        config.put("key.serializer", ByteArraySerializer.class.getName());
        config.put("value.serializer", ByteArraySerializer.class.getName());
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (String row : rows) {
                String[] fields = row.split(" ");
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                    words[2], Integer.valueOf(words[3]), bytes(fields[0]), bytes(fields[1]));
                for (int at = 2; at < fields.length; at += 2) {
                    record.headers().add(new String(bytes(fields[at]), StandardCharsets.UTF_8), bytes(fields[at + 1]));
                }
                sent.add(producer.send(record));
            }
            producer.flush();
            for (Future<RecordMetadata> each : sent) {
                each.get();
            }
        }
    }

    private static List<String> read(String[] words) {
        Properties config = new Properties();
        config.put("bootstrap.servers", words[1]);
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        config.put("fetch.max.wait.ms", "50"); // close() waits until the fetch under way is answered
        config.put("key.deserializer", ByteArrayDeserializer.class.getName());
        config.put("value.deserializer", ByteArrayDeserializer.class.getName());
        int count = Integer.parseInt(words[4]);
        long deadline = System.nanoTime() + TIMEOUT.toNanos();
        List<String> rows = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config)) {
            consumer.assign(List.of(new TopicPartition(words[2], Integer.parseInt(words[3]))));
            while (rows.size() < count && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    rows.add(row(record));
                }
            }
        }
        return rows.subList(0, Math.min(count, rows.size()));
    }

    private static String row(ConsumerRecord<byte[], byte[]> record) {
        StringBuilder text = new StringBuilder(text(record.key())).append(' ').append(text(record.value()));
        for (Header header : record.headers()) {
            text.append(' ').append(text(header.key().getBytes(StandardCharsets.UTF_8)));
            text.append(' ').append(text(header.value()));
        }
        return text.toString();
    }

    private static byte[] bytes(String field) {
        return field.equals("-") ? null : Base64.getDecoder().decode(field.substring(1));
    }

    private static String text(byte[] value) {
        return value == null ? "-" : "=" + Base64.getEncoder().encodeToString(value);
    }
}

import java.util.List;
import java.util.Map;
import java.util.Properties;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.TopicPartitionInfo;

/**
 * Grows a topic and describes it, so many partitions a page: {@code Topics SERVERS TOPIC PARTITIONS PAGE}.
 *
 * <p>Prints a line for each partition: its number, its leader, the number of its replicas.
 */
public final class Topics {
    private Topics() {}

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments[0]);
        try (Admin admin = Admin.create(config)) {
            int count = Integer.parseInt(arguments[2]);
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(count))).all().get();
            DescribeTopicsOptions paged =
                    new DescribeTopicsOptions().partitionSizeLimitPerResponse(Integer.parseInt(arguments[3]));
            TopicDescription found = admin.describeTopics(List.of(topic), paged).allTopicNames().get().get(topic);
            for (TopicPartitionInfo partition : found.partitions()) {
                System.out.println(
                        partition.partition() + " " + partition.leader().id() + " " + partition.replicas().size());
            }
        }
    }
}

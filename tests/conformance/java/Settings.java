import java.util.List;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.config.ConfigDef;

/** Prints what the clients of this release can be told: client, name and default, with tabs between. */
public final class Settings {
    public static void main(String[] arguments) {
        print("producer", ProducerConfig.configDef());
        print("consumer", ConsumerConfig.configDef());
        print("admin", AdminClientConfig.configDef());
    }

    private static void print(String client, ConfigDef settings) {
        new TreeMap<>(settings.configKeys()).forEach(
            (name, key) -> System.out.println(client + "\t" + name + "\t" + text(key)));
    }

    private static String text(ConfigDef.ConfigKey key) {
        Object value = key.hasDefault() ? key.defaultValue : null;
        return ConfigDef.convertToString(value == null ? "" : value, value instanceof List<?> ? ConfigDef.Type.LIST : ConfigDef.Type.STRING);
    }
}

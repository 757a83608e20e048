"""Everything at once against real brokers, for as long as one likes: what no other test combines.

topics      what topics there are, which life of a name an answer belongs to, and the history's numbers for logs
world       what all threads share: where leaders are, connections, faults, counts
producers   three kinds: librdkafka and our own by name, one by topic id that also sends twice on purpose
readers     fetch sessions over all partitions of a broker, and fetches at random offsets, near and far
lookups     ListOffsets by time and at both ends, and what of the answers can be judged
groups      groups of actors and of clients, which skip nothing and leave nothing unread
actions     what is done to the cluster, chosen by a seed
health      what brokers say of themselves: logs, directories, descriptors
run         all of it together, and the judgement
"""

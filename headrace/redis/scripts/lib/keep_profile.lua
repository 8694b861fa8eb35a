-- Keeps a profile until its TTL in s has passed, or `most` newer ones are kept.
local function keep_profile(id, ttl_s, most)
  redis.call('EXPIRE', keys.profile .. id, ttl_s)
  redis.call('ZADD', keys.PROFILES, NOW, id)
  redis.call('EXPIRE', keys.PROFILES, ttl_s)
  for _, old in ipairs(redis.call('ZRANGE', keys.PROFILES, 0, -1 - tonumber(most))) do
    redis.call('ZREM', keys.PROFILES, old)
    redis.call('UNLINK', keys.profile .. old)
  end
end

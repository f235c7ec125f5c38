# A stub of PVE::Storage: its calls of a plugin, in the order and with the arguments of the real
# one.
#
# Owns the check of what a plugin returns. What the real one has from files and requests is tainted
# here as well. One storage configuration, in memory; no locks, no other nodes. Written from the
# interface; nothing of it is Proxmox's.
package PVE::Storage;

use strict;
use warnings;

use PVE::Storage::Plugin;

# Tests load the plugin as other versions would.
our $version = 15;
sub APIVER { return $version }
sub APIAGE { return 6 }

my %storages;

# Of no length, and tainted where taint checks are on.
my $taint = substr($^X, 0, 0);

# As Proxmox VE loads a plugin of another party.
sub load {
    my ($file, $package) = @_;
    require $file;
    die "not derived from PVE::Storage::Plugin\n" if !$package->isa('PVE::Storage::Plugin');
    die "has no api\n" if !$package->can('api');
    my $theirs = $package->api();
    die "newer than this one ($theirs)\n" if $theirs > APIVER();
    die "too old ($theirs)\n" if $theirs < APIVER() - APIAGE();
    $package->register();
    return $theirs;
}

sub add_storage {
    my ($storeid, $type, %config) = @_;
    $_ .= $taint for values %config;
    $storages{$storeid} = PVE::Storage::Plugin->check_config($type, \%config);
    activate_storage($storeid) if !$config{disable};
}

sub config_of { return $storages{ $_[0] } // die "storage '$_[0]' does not exist\n" }

my sub plugin_of {
    my ($storeid) = @_;
    my $config = config_of($storeid);
    return (PVE::Storage::Plugin->lookup($config->{type}), $config);
}

my sub parse {
    my ($volid) = @_;
    my ($storeid, $volname) = $volid =~ /\A([a-z][a-z0-9_.-]*[a-z0-9]):(.+)\z/is
        or die "unable to parse volume ID '$volid'\n";
    return ($storeid . $taint, $volname . $taint, plugin_of($storeid));
}

sub activate_storage {
    my ($storeid) = @_;
    my ($plugin, $config) = plugin_of($storeid);
    if (!eval { $plugin->check_connection($storeid, $config) }) {
        die "connection check for storage '$storeid' failed - $@\n" if $@;
        die "storage '$storeid' is not online\n";
    }
    $plugin->activate_storage($storeid, $config, {});
}

sub storage_info {
    my ($storeid) = @_;
    my ($plugin, $config) = plugin_of($storeid);
    my @status = $plugin->status($storeid, $config, {});
    die "status is not four numbers\n" if @status != 4 || grep { !/\A[0-9]+\z/ } @status;
    return @status;
}

sub vdisk_alloc {
    my ($storeid, $vmid, $format, $name, $size_kib) = @_;
    my ($plugin, $config) = plugin_of($storeid);
    $format = $plugin->get_formats($config, $storeid)->{default} if !$format;
    activate_storage($storeid);
    $_ .= $taint for $vmid, $format, $size_kib;
    $name .= $taint if defined($name);
    my $umask = umask(umask() | 0037);
    my $volname =
        eval { $plugin->alloc_image($storeid, $config, $vmid, $format, $name, $size_kib) };
    my $error = $@;
    umask($umask);
    die $error if $error;
    my @parsed = $plugin->parse_volname($volname);
    die "parse_volname returns another list\n"
        if @parsed != 7 || $parsed[0] ne 'images' || $parsed[2] ne $vmid || $parsed[6] ne 'raw';
    return "$storeid:$volname";
}

sub vdisk_free {
    my ($volid) = @_;
    my ($storeid, $volname, $plugin, $config) = parse($volid);
    activate_storage($storeid);
    my ($is_base, $format) = ($plugin->parse_volname($volname))[5, 6];
    my $worker = $plugin->free_image($storeid, $config, $volname, $is_base, $format);
    die "free_image returns something else than a function\n"
        if defined($worker) && ref($worker) ne 'CODE';
    $worker->() if $worker;
}

sub vdisk_list {
    my ($storeid, $vmid, $vollist) = @_;
    my ($plugin, $config) = plugin_of($storeid);
    activate_storage($storeid);
    my $images = $plugin->list_images($storeid, $config, $vmid, $vollist, {});
    for my $image (@$images) {
        for my $key (qw(volid format size vmid)) {
            die "an image has no $key\n" if !defined($image->{$key});
        }
        die "'$image->{volid}' is not of this storage\n" if $image->{volid} !~ /\A\Q$storeid\E:/;
    }
    return sort { $a->{volid} cmp $b->{volid} } @$images;
}

sub activate_volumes {
    my ($volids, $snapname, $hints) = @_;
    for my $volid (@$volids) {
        my ($storeid, $volname, $plugin, $config) = parse($volid);
        activate_storage($storeid);
        $plugin->activate_volume($storeid, $config, $volname, $snapname, {}, $hints);
    }
}

sub deactivate_volumes {
    my ($volids, $snapname) = @_;
    my $errors = '';
    for my $volid (@$volids) {
        my ($storeid, $volname, $plugin, $config) = parse($volid);
        eval { $plugin->deactivate_volume($storeid, $config, $volname, $snapname, {}) };
        $errors .= $@ if $@;
    }
    die "volume deactivation failed: $errors" if $errors;
}

sub path {
    my ($volid, $snapname) = @_;
    my ($storeid, $volname, $plugin, $config) = parse($volid);
    my ($path, $owner, $vtype) = $plugin->path($config, $volname, $storeid, $snapname);
    return wantarray ? ($path, $owner, $vtype) : $path;
}

sub qemu_blockdev_options {
    my ($volid, $machine, $options) = @_;
    my ($storeid, $volname, $plugin, $config) = parse($volid);
    return $plugin->qemu_blockdev_options($config, $storeid, $volname, $machine, $options);
}

sub volume_size_info {
    my ($volid, $timeout) = @_;
    my ($storeid, $volname, $plugin, $config) = parse($volid);
    return $plugin->volume_size_info($config, $storeid, $volname, $timeout);
}

sub volume_resize {
    my ($volid, $size, $running, $snapname) = @_;
    my ($storeid, $volname, $plugin, $config) = parse($volid);
    $size += (1024 - $size % 1024) % 1024;
    $size .= $taint;
    return $plugin->volume_resize($config, $storeid, $volname, $size, $running, $snapname);
}

sub volume_has_feature {
    my ($feature, $volid, $snap, $running, $opts) = @_;
    my ($storeid, $volname, $plugin, $config) = parse($volid);
    return $plugin->volume_has_feature($config, $feature, $storeid, $volname, $snap, $running,
        $opts);
}

# Calls of which a tenuto storage must refuse each.
sub refusable {
    my ($volid) = @_;
    my ($storeid, $volname, $plugin, $config) = parse($volid);
    return (
        volume_snapshot => sub { $plugin->volume_snapshot($config, $storeid, $volname, 'one') },
        volume_rollback_is_possible =>
            sub { $plugin->volume_rollback_is_possible($config, $storeid, $volname, 'one', []) },
        volume_snapshot_rollback =>
            sub { $plugin->volume_snapshot_rollback($config, $storeid, $volname, 'one') },
        volume_snapshot_delete =>
            sub { $plugin->volume_snapshot_delete($config, $storeid, $volname, 'one', 0) },
        rename_snapshot =>
            sub { $plugin->rename_snapshot($config, $storeid, $volname, 'one', 'two') },
        volume_resize =>
            sub { $plugin->volume_resize($config, $storeid, $volname, 1 << 30, 0, 'one') },
        activate_volume =>
            sub { $plugin->activate_volume($storeid, $config, $volname, 'one', {}, undef) },
        path => sub { $plugin->path($config, $volname, $storeid, 'one') },
        create_base => sub { $plugin->create_base($storeid, $config, $volname) },
        clone_image => sub { $plugin->clone_image($config, $storeid, $volname, 101, undef) },
        rename_volume => sub { $plugin->rename_volume($config, $storeid, $volname, 101, undef) },
        volume_export => sub {
            $plugin->volume_export($config, $storeid, \*STDOUT, $volname, 'raw+size', undef, undef,
                0);
        },
        volume_import => sub {
            $plugin->volume_import($config, $storeid, \*STDIN, $volname, 'raw+size', undef, undef,
                0, 0);
        },
    );
}

1;
